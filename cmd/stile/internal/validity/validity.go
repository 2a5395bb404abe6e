// Package validity lets the process that holds a lock tell the processes of its command until when
// the lock is held, without a request to the store. stile assert reads it.
package validity

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/stilelock/stile/cmd/stile/internal/uptime"
)

// A Record says until when a lock is held. A nil Record says nothing. It must be used by one
// goroutine.
type Record struct {
	file *os.File
	path string
	id   string // tells the record from another file that has its path later
}

// ErrOver means that the lock is not held any more.
var ErrOver = errors.New("the lock is not held any more")

// Create returns a record of a lock that is not held yet. It takes no disk space on Linux, and is a
// temporary file elsewhere. Every user who can read it can also learn its content.
func Create() (*Record, error) {
	file, path, err := create()
	if err != nil {
		return nil, fmt.Errorf("create the record for stile assert: %w", err)
	}
	r := &Record{file: file, path: path, id: strconv.FormatInt(int64(uptime.Now()), 36)}
	if err := r.write(0); err != nil {
		r.Close()
		return nil, fmt.Errorf("create the record for stile assert: %w", err)
	}
	return r, nil
}

// Reference returns the text with which [Left] finds the record.
func (r *Record) Reference() string {
	if r == nil {
		return ""
	}
	return r.path + "#" + r.id
}

// Until records that the lock is held until a moment of [uptime.Now]. Zero means not any more. If
// that fails, the moment recorded before stays; by then the lock is held no longer, or the record has
// already ended.
func (r *Record) Until(moment time.Duration) {
	if r != nil {
		_ = r.write(moment)
	}
}

// Close records that the lock is not held any more, and removes the record.
func (r *Record) Close() {
	if r != nil {
		_ = r.write(0)
		_ = r.file.Close()
		remove(r.path)
	}
}

// write writes the moment twice, so that a reader notices if it reads half of two writes.
func (r *Record) write(moment time.Duration) error {
	_, err := r.file.WriteAt(fmt.Appendf(nil, "%s %020d %020d\n", r.id, moment, moment), 0)
	return err
}

// Left returns for how long a lock is still held at least, by its record. The error matches [ErrOver]
// if it is not held; any other error means that the record cannot be read.
func Left(reference string) (time.Duration, error) {
	path, id, ok := cutLast(reference, "#")
	if !ok {
		return 0, fmt.Errorf("%q is not the record of a lock", reference)
	}
	for range 100 {
		until, again, err := read(path, id)
		switch {
		case err != nil:
			return 0, err
		case again:
			continue
		}
		if left := until - uptime.Now(); left > 0 {
			return left, nil
		}
		return 0, ErrOver
	}
	return 0, fmt.Errorf("the record %s changes all the time", path)
}

// read reads a record. again reports that it was being written.
func read(path, id string) (until time.Duration, again bool, err error) {
	file, err := open(path)
	if errors.Is(err, os.ErrNotExist) { // its process has ended
		return 0, false, ErrOver
	}
	if err != nil {
		return 0, false, err
	}
	defer file.Close()
	text, err := io.ReadAll(io.LimitReader(file, 100))
	if err != nil {
		return 0, false, err
	}
	words := strings.Fields(string(text))
	switch {
	case len(words) != 3 || words[0] != id: // a later file with the same path
		return 0, false, ErrOver
	case words[1] != words[2]:
		return 0, true, nil
	}
	n, err := strconv.ParseInt(words[1], 10, 64)
	return time.Duration(n), false, err
}

func cutLast(s, sep string) (before, after string, found bool) {
	i := strings.LastIndex(s, sep)
	if i < 0 {
		return s, "", false
	}
	return s[:i], s[i+len(sep):], true
}

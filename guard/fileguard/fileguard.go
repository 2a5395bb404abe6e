// Package fileguard is a guard for files, and for whatever else one machine has: a directory, a device.
//
// The largest token that it has seen is in a file of its own beside the resource, PATH.fence. A process
// locks that file with flock(2) before the comparison, and unlocks it after the write. So comparison and
// write are one step for all processes that use the guard. A process that is stopped in between blocks the
// others, which wait until their context ends; it cannot write after them. If a process is killed, the
// programs that it has started do not inherit the lock, and can still write after others.
//
// It is an order guard for exclusive holds, with the limits that package guard names.
//
// The fence file is created with mode 0600. To let several users write, create it yourself, with
// permissions for all of them, before its first use. Nobody else may be able to write to its directory.
//
// The fence file must not be removed or emptied as long as stale holders may exist. A backup of the resource
// must include PATH.fence: a copy of the resource alone has no fence. A file with several names, by hard
// links, would have as many fences: use one of the names. Symbolic links are refused.
//
// It works on Linux, macOS and other systems with flock(2), on local file systems. Network file systems may
// lose locks. On Linux the guard recognizes most of them and returns an error, but not those in user space,
// such as sshfs. Elsewhere it recognizes none. On systems without flock(2), such as Windows, [Do] returns
// an error that matches [errors.ErrUnsupported].
package fileguard

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/stilelock/stile/guard"
)

// Do runs f if no larger token than this one has been seen at path. It runs one f at a time for each path,
// on the whole machine. path need not exist, but its directory must. It must have a name, not only dots or
// slashes, that does not end in .fence or .next, the names of the guard's own files. Slashes at its end do
// not count.
//
// If a larger token has been seen, the error is a [*guard.StaleError] and f is not run. Do waits while
// another call, in this process or another one, runs its f. So f must not call Do for the same path. If ctx
// ends before f is run, f is not run, and the error matches ctx.Err() and the cause of ctx. So pass the
// context of the hold: then f is never run after a loss that is known. If no hold can have the token, the
// error matches [guard.ErrBadToken]. Do does not end f when ctx ends. If f was run, Do returns its error.
// The token counts as seen then, and may be if f was not run.
func Do(ctx context.Context, path string, token uint64, f func() error) (err error) {
	if err := guard.CheckToken(path, token); err != nil {
		return err
	}
	if err := checkPath(path); err != nil {
		return fmt.Errorf("guard: %q: %w", path, err)
	}
	path = filepath.Clean(path) // so that "dir" and "dir/" have one fence
	fence, err := openFence(ctx, path)
	if err != nil {
		return fmt.Errorf("guard: %s: %w", path, err)
	}
	defer fence.Close() // unlocks it
	if ctx.Err() != nil {
		return fmt.Errorf("guard: %s: %w", path, endOf(ctx))
	}
	newest, err := largest(fence)
	switch {
	case err != nil:
		return fmt.Errorf("guard: %s: %w", fence.Name(), err)
	case token < newest:
		return &guard.StaleError{Resource: path, Token: token, Newest: newest}
	case token > newest:
		err = raise(fence, token)
	default:
		err = persist(fence) // the process that raised it may have died before this, or failed
	}
	if err == nil {
		err = syncDir(filepath.Dir(path)) // the same may be true of the process that made the fence
	}
	if err != nil {
		return fmt.Errorf("guard: %s: %w", fence.Name(), err)
	}
	if ctx.Err() != nil { // the disk may have been slow
		return fmt.Errorf("guard: %s: %w", path, endOf(ctx))
	}
	return f()
}

// checkPath refuses paths whose fence others may not use.
func checkPath(path string) error {
	path = filepath.Clean(path)
	switch filepath.Ext(path) {
	case fenceSuffix, nextSuffix:
		return fmt.Errorf("names that end in %s or %s are those of the guard's own files", fenceSuffix, nextSuffix)
	}
	switch filepath.Base(path) {
	case ".", "..", string(filepath.Separator):
		return errors.New("it has no name, beside which its fence could be: use a path that ends with the name")
	}
	if info, err := os.Lstat(path); err == nil && info.Mode()&os.ModeSymlink != 0 {
		return errors.New("it is a symbolic link, whose fence is not that of the file: use the path of the file")
	}
	return nil
}

// The names of the guard's files are the path with these suffixes.
const (
	fenceSuffix = ".fence"
	nextSuffix  = ".next" // new content, before it is renamed
)

// endOf returns an error that matches ctx.Err() and the cause of ctx.
func endOf(ctx context.Context) error {
	err, cause := ctx.Err(), context.Cause(ctx)
	if errors.Is(cause, err) {
		return cause
	}
	return fmt.Errorf("%w: %w", err, cause)
}

// WriteFile replaces the file at path in one step, and flushes it to the disk: a reader sees the old
// content or the new one. The file is always a new one: it gets the given permissions, before the umask,
// and keeps neither the permissions nor the owner of the old one.
//
// Its errors are those of [Do]. After an error of the file system the file may have either content.
func WriteFile(ctx context.Context, path string, data []byte, perm os.FileMode, token uint64) error {
	path = filepath.Clean(path)
	return Do(ctx, path, token, func() error { return replace(path, data, perm) })
}

// replace writes to another file, which then gets the name.
func replace(path string, data []byte, perm os.FileMode) (err error) {
	next := path + nextSuffix // nobody else uses it: the fence is locked
	if err := os.Remove(next); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err // left by a process that died
	}
	file, err := os.OpenFile(next, os.O_WRONLY|os.O_CREATE|os.O_EXCL, perm)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = os.Remove(next)
		}
	}()
	_, err = file.Write(data)
	if err == nil {
		err = file.Sync()
	}
	if err = errors.Join(err, file.Close()); err != nil {
		return err
	}
	if err := os.Rename(next, path); err != nil {
		return err
	}
	return syncDir(filepath.Dir(path))
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// Tokens is a [guard.Tokens] with a fence file for each resource in a directory.
type Tokens struct {
	// Dir is the directory. It must exist.
	Dir string
}

// Raise implements [guard.Tokens].
func (t Tokens) Raise(ctx context.Context, resource string, token uint64) error {
	if err := guard.CheckToken(resource, token); err != nil {
		return err
	}
	err := Do(ctx, filepath.Join(t.Dir, fileName(resource)), token, func() error { return nil })
	if stale, ok := errors.AsType[*guard.StaleError](err); ok {
		stale.Resource = resource
	}
	return err
}

// fileName returns a file name for a resource. Different resources have different names, also on file
// systems that ignore case.
func fileName(resource string) string {
	const longest = 200 // file systems allow 255 bytes, and ".fence" follows
	var b strings.Builder
	for _, c := range []byte(resource) {
		if 'a' <= c && c <= 'z' || '0' <= c && c <= '9' || c == '-' || c == '_' {
			b.WriteByte(c)
		} else {
			fmt.Fprintf(&b, "%%%02x", c)
		}
	}
	if b.Len() > longest {
		return fmt.Sprintf("long-%x", sha256.Sum256([]byte(resource)))
	}
	return "r-" + b.String()
}

// retryInterval is how often a locked fence is tried again.
const retryInterval = 5 * time.Millisecond

// openFence opens and locks the fence file of a path.
func openFence(ctx context.Context, path string) (*os.File, error) {
	// A user who can open the file can lock it, and so block all writers.
	file, err := os.OpenFile(path+fenceSuffix, os.O_RDWR|os.O_CREATE|noFollow, 0o600)
	if err != nil {
		return nil, err
	}
	if err := checkLocal(file); err != nil {
		return nil, errors.Join(err, file.Close())
	}
	for {
		locked, err := tryLock(file)
		switch {
		case err != nil:
			return nil, errors.Join(err, file.Close())
		case locked:
			return file, nil
		}
		select {
		case <-time.After(retryInterval):
		case <-ctx.Done():
			file.Close()
			return nil, fmt.Errorf("another process is writing: %w", endOf(ctx))
		}
	}
}

// A fence file has two slots, each with a token and a checksum. The first token is written into both, and
// each later one into the slot that does not have the largest one. If the machine dies meanwhile, that slot
// is invalid, and the other one still says what counted before.
const slotSize = 32

func slot(token uint64) []byte {
	text := fmt.Sprintf("%020d", token)
	return fmt.Appendf(nil, "%s %08x\n\n\n", text, crc32.ChecksumIEEE([]byte(text)))
}

// slots returns the tokens of both slots; zero for one that is invalid or empty.
func slots(fence *os.File) (tokens [2]uint64, err error) {
	for i := range tokens {
		b := make([]byte, slotSize)
		if _, err := fence.ReadAt(b, int64(i*slotSize)); err != nil && !errors.Is(err, io.EOF) {
			return tokens, err
		}
		var token uint64
		if _, err := fmt.Sscanf(string(b), "%d", &token); err == nil && string(b) == string(slot(token)) {
			tokens[i] = token
		}
	}
	return tokens, nil
}

// largest returns the largest token that the fence has; zero if it is new. A fence without a valid slot was
// damaged, unless its first write was cut off: that leaves less than a slot, or zeros.
func largest(fence *os.File) (uint64, error) {
	tokens, err := slots(fence)
	if err != nil {
		return 0, err
	}
	newest := max(tokens[0], tokens[1])
	if newest > 0 {
		return newest, nil
	}
	content, err := io.ReadAll(io.NewSectionReader(fence, 0, 2*slotSize+1))
	if err == nil && len(content) >= slotSize && strings.Trim(string(content), "\x00") != "" {
		err = errors.New("the fence is damaged: if no stale holder can exist, remove it")
	}
	return 0, err
}

// raise writes a token, and flushes it to the disk.
func raise(fence *os.File, token uint64) error {
	tokens, err := slots(fence)
	if err != nil {
		return err
	}
	content, at := slot(token), int64(0)
	switch {
	case tokens == [2]uint64{}:
		content = append(content, content...)
	case tokens[0] > tokens[1]:
		at = slotSize
	}
	if _, err := fence.WriteAt(content, at); err != nil {
		return err
	}
	return persist(fence)
}

// persist flushes the fence to the disk. The system may take what it could not flush for flushed, and do nothing when
// asked again. So after a failure persist writes the content anew, for the flush of the next call.
func persist(fence *os.File) error {
	err := flush(fence)
	if err == nil {
		return nil
	}
	content := make([]byte, 2*slotSize)
	n, again := fence.ReadAt(content, 0)
	if again == nil || errors.Is(again, io.EOF) {
		_, again = fence.WriteAt(content[:n], 0)
	}
	return errors.Join(err, again)
}

// flush writes a file to the disk. Tests replace it.
var flush = (*os.File).Sync

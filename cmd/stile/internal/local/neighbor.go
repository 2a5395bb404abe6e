//go:build unix

package local

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"

	"github.com/stilelock/stile/internal/localserver"
)

// socketPath matches the socket paths of local servers, of this version and earlier ones.
var socketPath = regexp.MustCompile(`/stile/local/server\.sock$|/local-[0-9a-f]{12}\.sock$`)

// Neighbor returns another user of this machine whose local server runs; empty if there is none or
// the system does not show it. Every user can choose the paths of sockets, so the result may be
// used in a message but must not be relied on.
func (d ServerDir) Neighbor() string {
	sockets, err := os.ReadFile("/proc/net/unix") // readable by everybody; takes a millisecond even on a busy machine
	if err != nil {
		return ""
	}
	for line := range strings.Lines(string(sockets)) {
		_, path, ok := strings.Cut(strings.TrimSuffix(line, "\n"), " /") // the last column, if it is a path
		if !ok || !socketPath.MatchString("/"+path) {
			continue
		}
		if uid := ownerOf("/" + path); uid >= 0 && uid != os.Getuid() {
			return localserver.UserName(uid)
		}
	}
	return ""
}

// ownerOf returns the owner of a file or, if it is inaccessible, of the first parent directory that
// is accessible; -1 if there is no such file.
func ownerOf(path string) int {
	info, err := os.Lstat(path)
	for errors.Is(err, fs.ErrPermission) && path != "/" {
		path = filepath.Dir(path)
		info, err = os.Lstat(path)
	}
	if err != nil {
		return -1
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return -1
	}
	return int(stat.Uid)
}

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
)

// theirSocket matches the path of the socket of a local server, of this version and earlier ones.
var theirSocket = regexp.MustCompile(`/stile/local/server\.sock$|/local-[0-9a-f]{12}\.sock$`)

// Neighbor returns another user of this machine whose local server runs; empty if there is none, or the system does not
// tell. It believes the paths of sockets, which every user can choose: what it returns is good for a remark and nothing
// else.
func (h Home) Neighbor() string {
	sockets, err := os.ReadFile("/proc/net/unix") // for all to read, and a millisecond even on a busy machine
	if err != nil {
		return ""
	}
	for line := range strings.Lines(string(sockets)) {
		_, path, ok := strings.Cut(strings.TrimSuffix(line, "\n"), " /") // the last column, if it is a path
		if !ok || !theirSocket.MatchString("/"+path) {
			continue
		}
		if uid := ownerOf("/" + path); uid >= 0 && uid != os.Getuid() {
			return userName(uid)
		}
	}
	return ""
}

// ownerOf returns the user whom a file belongs to, or else whose directory hides it; -1 if there is no such file.
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

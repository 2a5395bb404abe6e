//go:build unix

package cli

import (
	"io/fs"
	"net/url"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// ownerOf returns the user ID of a file's owner.
func ownerOf(info fs.FileInfo) int {
	if stat, ok := info.Sys().(*syscall.Stat_t); ok {
		return int(stat.Uid)
	}
	return -1
}

// mayConnect checks that a file exists at path and is writable, as connecting to a socket requires.
func mayConnect(path string) error {
	if err := unix.Access(path, unix.W_OK); err != nil {
		return os.NewSyscallError("access", err)
	}
	return nil
}

// socketURL returns the URL of a server on a unix socket.
func socketURL(path string) string { return "etcd+unix://" + (&url.URL{Path: path}).EscapedPath() }

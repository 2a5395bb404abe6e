//go:build unix

package cli

import (
	"io/fs"
	"net/url"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// ownerOf returns the user whom a file belongs to.
func ownerOf(info fs.FileInfo) int {
	if stat, ok := info.Sys().(*syscall.Stat_t); ok {
		return int(stat.Uid)
	}
	return -1
}

// mayConnect checks that there is a file at path, and that we may write to it, as to a socket to connect.
func mayConnect(path string) error {
	if err := unix.Access(path, unix.W_OK); err != nil {
		return os.NewSyscallError("access", err)
	}
	return nil
}

// socketURL is the URL of a server that listens on a unix socket.
func socketURL(path string) string { return "etcd+unix://" + (&url.URL{Path: path}).EscapedPath() }

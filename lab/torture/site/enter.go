//go:build linux

package site

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// Site is a place that no other process shares: it has a network and a file system of its own.
type Site struct {
	dir string
}

// marker is the environment variable by which a process knows that it has been started anew: it has the network namespace
// that it was started from.
const marker = "STILE_TORTURE_OUTSIDE"

// Enter takes the process to a site. Call it once, first thing in main or TestMain.
//
// The first call does not return if it succeeds: the process executes its own program again, with the same process id,
// arguments, environment, working directory and open standard files, in new network and mount namespaces and, unless it is
// root, in a user namespace in which it is. There the call returns.
//
// It fails if the kernel does not allow that, or if one of the programs ip, nft, nsenter and unshare is missing.
func Enter() (*Site, error) {
	for _, program := range []string{"ip", "nft", "nsenter", "unshare"} {
		if _, err := exec.LookPath(program); err != nil {
			return nil, fmt.Errorf("a network to hurt needs the program %s (Debian: iproute2, nftables, util-linux): %w", program, err)
		}
	}
	network, err := os.Readlink("/proc/self/ns/net")
	if err != nil {
		return nil, err
	}
	if outside := os.Getenv(marker); outside == "" || outside == network {
		return nil, again(network)
	}
	if err := os.Unsetenv(marker); err != nil {
		return nil, err
	}
	return furnish()
}

// again executes the program again, inside. It returns only if that is not possible.
func again(outside string) error {
	unshare, err := exec.LookPath("unshare")
	if err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	flags, err := allowed(unshare)
	if err != nil {
		return err
	}
	args := append([]string{"unshare"}, flags...)
	args = append(append(args, "--", self), os.Args[1:]...)
	//nolint:gosec // It runs itself again, as it was told to.
	return syscall.Exec(unshare, args, append(os.Environ(), marker+"="+outside))
}

// allowed returns the flags with which unshare may make the namespaces. Root in a container may need a user namespace too.
func allowed(unshare string) ([]string, error) {
	var refused []error
	for _, flags := range [][]string{
		{"--net", "--mount"},
		{"--net", "--mount", "--map-root-user"},
	} {
		said, err := exec.Command(unshare, append(flags, "true")...).CombinedOutput()
		if err == nil {
			return flags, nil
		}
		refused = append(refused, fmt.Errorf("unshare %s: %s", strings.Join(flags, " "), strings.TrimSpace(string(said))))
	}
	return nil, fmt.Errorf("the kernel gives this process no network and mounts of its own; run it as root, or allow user "+
		"namespaces (sysctl user.max_user_namespaces): %w", errors.Join(refused...))
}

// furnish makes a new site habitable.
func furnish() (*Site, error) {
	if err := ip("link", "set", "lo", "up"); err != nil {
		return nil, err
	}
	for _, dir := range []string{"/mnt", "/media", "/srv", "/opt"} {
		// Nobody's files are to be hidden, our own program's least of all.
		if entries, err := os.ReadDir(dir); err != nil || len(entries) > 0 {
			continue
		}
		if err := mountMemory(dir, "256m"); err != nil {
			return nil, err
		}
		return &Site{dir: dir}, nil
	}
	return nil, errors.New("no place for files that nobody else sees: none of /mnt, /media, /srv and /opt is an empty directory")
}

// Dir is a directory in memory for the files of the run. No other process sees it but those that this one starts, and it
// goes with them.
func (s *Site) Dir() string { return s.dir }

// mountMemory mounts a file system in memory.
func mountMemory(dir, size string) error {
	if err := unix.Mount("stile-torture", dir, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=700,size="+size); err != nil {
		return fmt.Errorf("mount a file system in memory at %s: %w", dir, err)
	}
	return nil
}

// ip changes something about the network.
func ip(args ...string) error { return feed("", "ip", args...) }

// feed runs a program that says something only if it fails.
func feed(input, program string, args ...string) error {
	cmd := exec.Command(program, args...)
	cmd.Stdin = strings.NewReader(input)
	if said, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s %s: %w: %s", program, strings.Join(args, " "), err, strings.TrimSpace(string(said)))
	}
	return nil
}

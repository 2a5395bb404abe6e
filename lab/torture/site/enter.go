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

// Site is a private place: it has its own network and file system.
type Site struct {
	dir string
}

// outsideVar is the environment variable by which a process knows that Enter has executed it again.
// Its value is the network namespace that the first process had.
const outsideVar = "STILE_TORTURE_OUTSIDE"

// Enter moves the process to a site. Call it once, first of all in main or TestMain.
//
// The first call does not return if it succeeds: the process executes its own program again, with
// the same process id, arguments, environment, working directory and standard files. The program
// then runs in new network and mount namespaces and, unless it is root, in a user namespace in
// which it is root. There the call returns.
//
// It fails if the kernel does not allow that, or if one of the programs ip, nft, nsenter and
// unshare is missing.
func Enter() (*Site, error) {
	for _, program := range []string{"ip", "nft", "nsenter", "unshare"} {
		if _, err := exec.LookPath(program); err != nil {
			return nil, fmt.Errorf("the program %s is needed for a private network (Debian: iproute2, nftables, util-linux): %w", program, err)
		}
	}
	network, err := os.Readlink("/proc/self/ns/net")
	if err != nil {
		return nil, err
	}
	if outside := os.Getenv(outsideVar); outside == "" || outside == network {
		return nil, reexec(network)
	}
	if err := os.Unsetenv(outsideVar); err != nil {
		return nil, err
	}
	return setUp()
}

// reexec executes the program again, inside new namespaces. It returns only after an error.
func reexec(outside string) error {
	unshare, err := exec.LookPath("unshare")
	if err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	flags, err := unshareFlags(unshare)
	if err != nil {
		return err
	}
	args := append([]string{"unshare"}, flags...)
	args = append(append(args, "--", self), os.Args[1:]...)
	//nolint:gosec // It executes its own program.
	return syscall.Exec(unshare, args, append(os.Environ(), outsideVar+"="+outside))
}

// unshareFlags returns the flags with which unshare is allowed to create the namespaces. Even root
// may need a user namespace, in a container.
func unshareFlags(unshare string) ([]string, error) {
	var refused []error
	for _, flags := range [][]string{
		{"--net", "--mount"},
		{"--net", "--mount", "--map-root-user"},
	} {
		output, err := exec.Command(unshare, append(flags, "true")...).CombinedOutput()
		if err == nil {
			return flags, nil
		}
		refused = append(refused, fmt.Errorf("unshare %s: %s", strings.Join(flags, " "), strings.TrimSpace(string(output))))
	}
	return nil, fmt.Errorf("the kernel allows no private network and mounts; run this as root, or allow user "+
		"namespaces (sysctl user.max_user_namespaces): %w", errors.Join(refused...))
}

// setUp prepares a new site.
func setUp() (*Site, error) {
	if err := ip("link", "set", "lo", "up"); err != nil {
		return nil, err
	}
	for _, dir := range []string{"/mnt", "/media", "/srv", "/opt"} {
		// An empty directory, so that no files are hidden, least of all the program itself.
		if entries, err := os.ReadDir(dir); err != nil || len(entries) > 0 {
			continue
		}
		if err := mountTmpfs(dir, "256m"); err != nil {
			return nil, err
		}
		return &Site{dir: dir}, nil
	}
	return nil, errors.New("no directory for the files of the run: none of /mnt, /media, /srv and /opt is an empty directory")
}

// Dir returns a directory in memory for the files of the run. Only this process and its children
// see it, and it ends with them.
func (s *Site) Dir() string { return s.dir }

// mountTmpfs mounts a file system in memory.
func mountTmpfs(dir, size string) error {
	if err := unix.Mount("stile-torture", dir, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=700,size="+size); err != nil {
		return fmt.Errorf("mount a file system in memory at %s: %w", dir, err)
	}
	return nil
}

// ip changes the network configuration.
func ip(args ...string) error { return runWithInput("", "ip", args...) }

// runWithInput runs a program with this standard input. The error contains its output.
func runWithInput(input, program string, args ...string) error {
	cmd := exec.Command(program, args...)
	cmd.Stdin = strings.NewReader(input)
	if output, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s %s: %w: %s", program, strings.Join(args, " "), err, strings.TrimSpace(string(output)))
	}
	return nil
}

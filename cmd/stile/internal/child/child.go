// Package child runs a command in a process group of its own, so that a signal reaches every
// process that the command has started, and gives it the terminal when it needs it.
package child

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// Exit codes that shells, env(1) and timeout(1) give to a command that could not be run.
const (
	CannotExecute = 126
	NotFound      = 127
	unknown       = 125 // it is unknown how the command ended
	signaled      = 128 // plus the number of the signal that ended a command
)

// Error is the error of a command that could not be run.
type Error struct {
	// Code is CannotExecute or NotFound.
	Code int
	// Name is the command as given.
	Name string
	// Err is the reason.
	Err error
}

// Error names the command and the reason.
func (e *Error) Error() string {
	if errors.Is(e.Err, exec.ErrNotFound) || errors.Is(e.Err, fs.ErrNotExist) {
		return "command not found: " + e.Name
	}
	return "cannot execute " + e.Name + ": " + e.Err.Error()
}

// Unwrap returns Err.
func (e *Error) Unwrap() error { return e.Err }

// Look finds the executable file of a command like a shell. Every error is an [*Error].
func Look(name string) (string, error) {
	path, err := lookPath(name)
	switch {
	case err == nil:
		return path, nil
	case errors.Is(err, exec.ErrDot): // the user has put the current directory into PATH
		return path, nil
	case !strings.ContainsRune(name, filepath.Separator) && inPath(name):
		err = fs.ErrPermission // the search skips files that are not executable
	}
	if ee, ok := errors.AsType[*exec.Error](err); ok {
		err = ee.Err
	}
	return "", wrapErr(name, err)
}

// lookPath is exec.LookPath, but without PATH in the environment it searches /bin and /usr/bin, as
// execvp(3) and with it flock, env and timeout do.
func lookPath(name string) (string, error) {
	if _, set := os.LookupEnv("PATH"); set || strings.ContainsRune(name, filepath.Separator) {
		return exec.LookPath(name)
	}
	path, err := exec.LookPath("/bin/" + name)
	if err != nil {
		path, err = exec.LookPath("/usr/bin/" + name)
	}
	return path, err
}

// inPath reports whether a directory of PATH has a file with that name, executable or not.
func inPath(name string) bool {
	for _, dir := range filepath.SplitList(os.Getenv("PATH")) {
		if info, err := os.Stat(filepath.Join(dir, name)); err == nil && !info.IsDir() {
			return true
		}
	}
	return false
}

// wrapErr makes an [*Error] from an error of finding or starting a command.
func wrapErr(name string, err error) error {
	if pe, ok := errors.AsType[*fs.PathError](err); ok {
		err = pe.Err
	}
	if errors.Is(err, exec.ErrNotFound) || errors.Is(err, fs.ErrNotExist) {
		return &Error{NotFound, name, err}
	}
	return &Error{CannotExecute, name, err}
}

// Command describes the command to run.
type Command struct {
	// Path is the executable file. Args are its arguments, including the name as the first.
	Path string
	Args []string
	// Env is the whole environment.
	Env []string
	// Mark is the beginning of an entry of Env that is unique to this command; see [Tree].
	Mark string
	// Stdin, Stdout and Stderr are inherited by the command.
	Stdin, Stdout, Stderr *os.File
}

// Stop ends the command and every process that it has started, as far as its process group and its
// mark identify them. It sends sig, and kills the rest when grace has passed or hurry is closed. It
// returns when the command has ended and all others have ended or were killed. A stopped group is
// not continued: it is killed while it is stopped.
//
// On Windows it kills the command at once, because there are no signals, and not the processes that
// the command has started.
func (p *Process) Stop(sig os.Signal, grace time.Duration, hurry <-chan struct{}) {
	p.ask(sig)
	timeout := time.NewTimer(grace)
	defer timeout.Stop()
	done := p.done
	for {
		// The end of a process group can only be polled for.
		poll := time.NewTimer(10 * time.Millisecond)
		select {
		case <-timeout.C:
			p.kill()
			<-p.done
			return
		case <-hurry:
			p.kill()
			<-p.done
			return
		case <-done:
			done = nil
		case <-poll.C:
		}
		poll.Stop()
		if done == nil && !p.anyAlive() {
			return
		}
	}
}

// Done is closed when the command has ended.
func (p *Process) Done() <-chan struct{} { return p.done }

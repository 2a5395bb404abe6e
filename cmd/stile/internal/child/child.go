// Package child runs a command in a process group of its own, so that a signal reaches everything the command has
// started, and lets it have the terminal when it wants it.
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
	unknown       = 125 // nothing is known of how it ended
	signaled      = 128 // plus the number of the signal that ended a command
)

// Error says why a command could not be run.
type Error struct {
	// Code is CannotExecute or NotFound.
	Code int
	// Name is the command as it was given.
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

// Look finds the executable file behind the name of a command, as a shell would. Every error is an [*Error].
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
	return "", failure(name, err)
}

// lookPath is exec.LookPath for an environment without PATH, too: there execvp(3) looks in these places, and with it flock,
// env and timeout.
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

// failure makes an [*Error] of what looking for a command, or starting it, failed with.
func failure(name string, err error) error {
	if pe, ok := errors.AsType[*fs.PathError](err); ok {
		err = pe.Err
	}
	if errors.Is(err, exec.ErrNotFound) || errors.Is(err, fs.ErrNotExist) {
		return &Error{NotFound, name, err}
	}
	return &Error{CannotExecute, name, err}
}

// Command is what to run.
type Command struct {
	// Path is the executable file, Args its arguments, beginning with its own name.
	Path string
	Args []string
	// Env is the whole environment.
	Env []string
	// Mark is the beginning of an entry of Env that only this command has; see [Tree].
	Mark string
	// Stdin, Stdout and Stderr are inherited as they are.
	Stdin, Stdout, Stderr *os.File
}

// Stop ends the command and everything that it has started, which is what its process group and its mark tell: sends
// sig, and kills what is left when grace has passed or hurry is closed, whichever is first. It returns when the command has
// ended and nothing is left, or was killed. A group that is stopped is not continued: it dies without another step.
//
// On Windows, where nobody can be asked, it kills the command at once, and not what the command has started.
func (p *Process) Stop(sig os.Signal, grace time.Duration, hurry <-chan struct{}) {
	p.ask(sig)
	patience := time.NewTimer(grace)
	defer patience.Stop()
	done := p.done
	for {
		// The end of a process group is no event that could be waited for.
		look := time.NewTimer(10 * time.Millisecond)
		select {
		case <-patience.C:
			p.kill()
			<-p.done
			return
		case <-hurry:
			p.kill()
			<-p.done
			return
		case <-done:
			done = nil
		case <-look.C:
		}
		look.Stop()
		if done == nil && !p.anyAlive() {
			return
		}
	}
}

// Done is closed when the command has ended.
func (p *Process) Done() <-chan struct{} { return p.done }

// Package clockshim lets the wall clock of a C program jump while it runs: the program believes that it is as much ahead of
// the machine's, or behind it, as a file says. Monotonic clocks are left alone.
//
// It works by a few lines of C that are loaded before the program's own, so it needs a C compiler, and does nothing to
// programs that are linked statically, as Go's are.
package clockshim

import (
	_ "embed"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"
)

//go:embed clock.c.txt
var source []byte

// ErrNoCompiler means that there is no cc on the PATH.
var ErrNoCompiler = errors.New("there is no C compiler, cc, on the PATH")

// Shim is a library to be loaded before a program, or before several: each has a clock of its own.
type Shim struct {
	dir, library string
}

// Build makes the library, in the directory dir, where the files of the clocks will be too. The error is
// [ErrNoCompiler], or says why it does not compile.
func Build(dir string) (*Shim, error) {
	cc, err := exec.LookPath("cc")
	if err != nil {
		return nil, ErrNoCompiler
	}
	code, library := filepath.Join(dir, "clock.c"), filepath.Join(dir, "clock.so")
	if err := os.WriteFile(code, source, 0o600); err != nil {
		return nil, err
	}
	if said, err := exec.Command(cc, "-shared", "-fPIC", "-O1", "-o", library, code, "-ldl").CombinedOutput(); err != nil {
		return nil, fmt.Errorf("the clock shim does not compile: %w\n%s", err, said)
	}
	return &Shim{dir: dir, library: library}, nil
}

// Clock is the wall clock of one program.
type Clock struct {
	library, file string
}

// Clock makes a clock, that is right. No two of a shim have the same name.
func (s *Shim) Clock(name string) (*Clock, error) {
	c := &Clock{library: s.library, file: filepath.Join(s.dir, name+".ahead")}
	return c, c.Set(0)
}

// Env is what the environment of the program must have.
func (c *Clock) Env() []string {
	return []string{"LD_PRELOAD=" + c.library, "STILE_CLOCK_FILE=" + c.file}
}

// Set sets the clock so much ahead of the machine's or, if ahead is negative, behind it, in whole milliseconds. The program
// sees it within ten milliseconds after its next look at the clock.
func (c *Clock) Set(ahead time.Duration) error {
	return os.WriteFile(c.file, fmt.Appendf(nil, "%d\n", ahead.Milliseconds()), 0o600)
}

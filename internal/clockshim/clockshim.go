// Package clockshim changes the wall clock of a C program while it runs. The program sees the
// system clock plus an offset that is read from a file. Monotonic clocks are not affected.
//
// It preloads a small C library, so it needs a C compiler. It has no effect on statically linked
// programs, such as Go programs.
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
var ErrNoCompiler = errors.New("no C compiler (cc) on the PATH")

// Shim is a library to preload into programs. Each program has its own [Clock].
type Shim struct {
	dir, library string
}

// Build compiles the library in the directory dir, which will also contain the files of the clocks.
// It returns [ErrNoCompiler], or an error with the compiler's output.
func Build(dir string) (*Shim, error) {
	cc, err := exec.LookPath("cc")
	if err != nil {
		return nil, ErrNoCompiler
	}
	code, library := filepath.Join(dir, "clock.c"), filepath.Join(dir, "clock.so")
	if err := os.WriteFile(code, source, 0o600); err != nil {
		return nil, err
	}
	if output, err := exec.Command(cc, "-shared", "-fPIC", "-O1", "-o", library, code, "-ldl").CombinedOutput(); err != nil {
		return nil, fmt.Errorf("cannot compile the clock shim: %w\n%s", err, output)
	}
	return &Shim{dir: dir, library: library}, nil
}

// Clock is the wall clock of one program.
type Clock struct {
	library, file string
}

// Clock returns a new clock without an offset. Names must be unique within a shim.
func (s *Shim) Clock(name string) (*Clock, error) {
	c := &Clock{library: s.library, file: filepath.Join(s.dir, name+".ahead")}
	return c, c.Set(0)
}

// Env returns the environment variables that the program needs.
func (c *Clock) Env() []string {
	return []string{"LD_PRELOAD=" + c.library, "STILE_CLOCK_FILE=" + c.file}
}

// Set sets the clock ahead of the system clock, or behind it if ahead is negative, in whole
// milliseconds. A running program sees the change within 10 ms.
func (c *Clock) Set(ahead time.Duration) error {
	return os.WriteFile(c.file, fmt.Appendf(nil, "%d\n", ahead.Milliseconds()), 0o600)
}

package cli

import (
	"errors"
	"fmt"
	"strconv"

	"github.com/spf13/pflag"
)

// flockFlags are the flags of flock(1) that stile run does not have itself. Some are aliases, or
// change nothing for a lock without a file; the others are refused.
type flockFlags struct{ ignored bool }

// add adds the flags. Help does not list them.
func (f *flockFlags) add(flags *pflag.FlagSet) {
	flags.BoolVarP(&f.ignored, "e", "e", false, "") // a flag has only one shorthand
	flags.BoolVarP(&f.ignored, "close", "o", false, "")
	flags.BoolVarP(&f.ignored, "unlock", "u", false, "")
	flags.BoolVarP(&f.ignored, "no-fork", "F", false, "")
	for _, name := range []string{"e", "close", "unlock", "no-fork"} {
		flags.Lookup(name).Hidden = true
	}
	flags.SetNormalizeFunc(func(_ *pflag.FlagSet, name string) pflag.NormalizedName {
		switch name {
		case "nb", "nonblocking":
			name = "nonblock"
		case "timeout":
			name = "wait"
		}
		return pflag.NormalizedName(name)
	})
}

// refused returns an error that says what to do instead, if a refused flag was given.
func (f *flockFlags) refused(flags *pflag.FlagSet) error {
	switch {
	case flags.Changed("unlock"):
		return errors.New("-u, --unlock: there is no file descriptor to unlock; the lock is released when the command ends, " +
			"and stile break releases somebody else's")
	case flags.Changed("no-fork"):
		return errors.New("-F, --no-fork: stile has to stay to renew the lock; leave the flag out")
	}
	return nil
}

// isDescriptor reports whether flock would take an argument without a command for a file
// descriptor.
func isDescriptor(arg string) bool {
	_, err := strconv.ParseUint(arg, 10, 31)
	return err == nil
}

// exitCode is the value of a flag that takes an exit code.
type exitCode uint8

// Set implements pflag.Value.
func (c *exitCode) Set(s string) error {
	n, err := strconv.ParseUint(s, 10, 8)
	if err != nil {
		return errors.New("must be a number from 0 to 255")
	}
	*c = exitCode(n)
	return nil
}

// String implements pflag.Value.
func (c *exitCode) String() string { return fmt.Sprint(uint8(*c)) }

// Type implements pflag.Value.
func (c *exitCode) Type() string { return "int" }

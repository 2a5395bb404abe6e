package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/stilelock/stile/cmd/stile/internal/child"
	"github.com/stilelock/stile/cmd/stile/internal/inherited"
	"github.com/stilelock/stile/cmd/stile/internal/supervise"
)

// holdCmd is one call of the verb hold.
type holdCmd struct {
	request
	format  format
	readyFD descriptor
}

func newHold(stdio Stdio) *cobra.Command {
	h := holdCmd{request: newRequest(stdio), format: formatText, readyFD: -1}
	cmd := &cobra.Command{
		Use:        "hold [flags] NAME",
		Short:      "Hold a lock without a command, until stdin ends",
		SuggestFor: []string{"keep"},
		Long: `Acquire the lock NAME, print its token, and hold it until stdin ends or a signal comes; then
release it. This is for programs and scripts that hold a lock while they do other things, as with a
file descriptor of flock. Where a command can be given, use stile run: it stops the command if the
lock is lost.

If stdin is /dev/null, as that of a command in the background of a script, only a signal ends the
hold. With a pipe it ends with the program at the other end, however that ends.

If the lock is lost, stile hold says so and ends with 79. The program has to notice that by itself.
The lock stays held for the --ttl if stile hold is killed.

Exit codes:
  0    the lock was held, until stdin ended or a signal came
  75   the lock could not be acquired (-n, -w); -E chooses another
  79   the lock was lost
  125  stile failed
  128+N  signal N ended the wait

A DURATION is in seconds (5, 0.5) or has units (500ms, 1m30s).`,
		Example: `  coproc stile hold nightly-backup                # bash: until the script ends
  read -r held <&"${COPROC[0]}" || exit 1         # now it is held
  exec {COPROC[1]}>&-                             # release it before that
  stile hold -o json --all orders stock           # for a program that keeps its stdin open`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return errors.New("missing lock name: stile hold [flags] NAME; see stile hold --help")
			}
			if !h.kind.all {
				if err := atMost(1, cmd, args); err != nil {
					return err
				}
			}
			for _, arg := range args {
				name, err := lockName(arg)
				if err != nil {
					return err
				}
				h.names = append(h.names, name)
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, _ []string) error {
			h.waitSet = cmd.Flags().Changed("wait")
			return h.run(cmd.Context())
		},
	}
	flags := cmd.Flags()
	h.addFlags(flags)
	h.addWaitFlags(flags)
	h.kind.addFlags(flags)
	flags.Lookup("all").Usage = "take the locks of all NAMEs, or none of them"
	flags.VarP(&h.format, "output", "o", "text, or json for programs")
	flags.Var(&h.readyFD, "ready-fd", "print to this file descriptor, and close it, instead of to stdout")
	return cmd
}

func (h *holdCmd) run(ctx context.Context) error {
	owner, err := h.check("stile hold")
	if err != nil {
		return err
	}
	if h.store, err = chooseStore(h.url); err != nil {
		return err
	}
	out := h.stdio.Out
	if h.readyFD >= 0 { // before other files are opened
		if out, err = inherited.Open(int(h.readyFD)); err != nil {
			return fmt.Errorf("--ready-fd %d: %w", h.readyFD, err)
		}
		defer out.Close()
	}
	signals := child.Listen()
	defer signals.Close()
	ctx, cancel := context.WithCancel(ctx) // ends the use of the local server, however long the last output takes
	defer cancel()
	l, err := h.acquire(ctx, signals, owner)
	if err != nil {
		return err
	}
	defer l.close()
	if err := h.printHeld(l, out); err != nil {
		return err
	}
	return l.keep(signals, endOf(h.stdio.In))
}

// keep holds the lock until the input ends, a signal comes, or the lock is lost.
func (l *lock) keep(signals *child.Signals, ended <-chan struct{}) error {
	var lastErr error
	for {
		select {
		case <-ended:
			return nil
		case sig := <-signals.C():
			if child.Ends(sig) {
				return nil
			}
		case renewal := <-l.renewals:
			if renewal.Err != nil && lastErr == nil {
				l.report("%s: a renewal failed%s; trying again", l.what(), l.because(renewal.Err))
			}
			lastErr = renewal.Err
		case <-l.hold.Lost():
			l.lossReported = true
			return &exit{exitLost, errors.New(supervise.LostText(l.hold, l.what(), l.because))}
		}
	}
}

// endOf returns a channel that is closed when a file has been read to its end. That of the null device
// has no end.
func endOf(in *os.File) <-chan struct{} {
	ended := make(chan struct{})
	if null, err := os.Stat(os.DevNull); err == nil {
		if info, err := in.Stat(); err == nil && os.SameFile(null, info) {
			return ended
		}
	}
	child.IgnoreTerminalInput() // otherwise reading would stop a process in the background
	go func() {
		if _, err := io.Copy(io.Discard, in); err == nil {
			close(ended)
		}
	}()
	return ended
}

// heldInJSON is the output.
type heldInJSON struct {
	Holds    []held    `json:"holds"`
	Deadline time.Time `json:"deadline"`
}

// printHeld prints the holds, and closes the descriptor of --ready-fd.
func (h *holdCmd) printHeld(l *lock, out *os.File) error {
	var buf bytes.Buffer
	deadline := l.hold.Deadline()
	if h.format == formatJSON {
		b, err := asJSON(heldInJSON{l.held(""), deadline.UTC().Truncate(time.Millisecond)}, "")
		if err != nil {
			return err
		}
		buf.Write(b)
	} else {
		fmt.Fprintf(&buf, "%s: held, %s, until %s if not renewed\n", l.what(), l.tokens(), clock(deadline))
	}
	if h.readyFD < 0 {
		return h.stdio.write(buf.Bytes())
	}
	_, err := out.Write(buf.Bytes())
	if err = errors.Join(err, out.Close()); err != nil {
		return fmt.Errorf("--ready-fd %d: %w", h.readyFD, err)
	}
	return nil
}

// descriptor is the value of a flag that takes a file descriptor.
type descriptor int

// Set implements pflag.Value.
func (d *descriptor) Set(s string) error {
	n, err := strconv.ParseUint(s, 10, 16)
	if err != nil || slices.Contains([]uint64{0, 2}, n) {
		return errors.New("must be the number of an open file descriptor, 1 or from 3")
	}
	*d = descriptor(n)
	return nil
}

// String implements pflag.Value.
func (d *descriptor) String() string {
	if *d < 0 {
		return ""
	}
	return strconv.Itoa(int(*d))
}

// Type implements pflag.Value.
func (d *descriptor) Type() string { return "N" }

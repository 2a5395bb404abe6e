package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/stilelock/stile"
	"github.com/stilelock/stile/cmd/stile/internal/local"
	"github.com/stilelock/stile/internal/localserver"
	"github.com/stilelock/stile/store"
	"github.com/stilelock/stile/storeurl"
)

// exitAtRisk is the exit code of stile doctor if a promise is at risk.
const exitAtRisk = 1

func newDoctor(stdio Stdio) *cobra.Command {
	r := newReader(stdio)
	ttl := duration(stile.DefaultTTL)
	cmd := &cobra.Command{
		Use:        "doctor [flags]",
		Short:      "Examine the store for what may break locks",
		SuggestFor: []string{"check", "health", "diagnose"},
		Long: `Examine the store, and this user's local server, for what may break a promise of Stile and for
what makes locks slow or unavailable: versions with known bugs, settings, replication, clocks,
missing rights, the number of servers that answer, and more.

It prints what is wrong, how bad that is, and what to do; then what is fine. It changes nothing,
needs no rights beyond those that locks need, and starts no server. What it may not examine, it
says. It takes a few seconds, and more if servers do not answer.

Exit codes:
  0    no promise is at risk
  1    a promise is at risk
  125  stile failed, or the store does not answer`,
		Example: `  stile doctor
  stile doctor --url redis://db1 --ttl 30s
  stile doctor -o json | jq -r '.findings[] | select(.severity == "risk") | .what'`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if ttl <= 0 || time.Duration(ttl) > stile.MaxTTL {
				return fmt.Errorf("--ttl %s: want a TTL that locks can have, at most %s", brief(time.Duration(ttl)), brief(stile.MaxTTL))
			}
			d := diagnosis{TTL: brief(time.Duration(ttl)), Findings: []store.Finding{}}
			err := d.make(cmd.Context(), r.url, time.Duration(ttl))
			if r.format == formatJSON {
				if err != nil {
					d.Error = textOf(err)
				}
				if err := stdio.writeJSON(d); err != nil {
					return err
				}
			} else if err := stdio.write(d.text()); err != nil {
				return err
			}
			if err == nil && slices.ContainsFunc(d.Findings, func(f store.Finding) bool { return f.Severity == store.Risk }) {
				err = &exit{Code: exitAtRisk}
			}
			return err
		},
	}
	r.addFlags(cmd.Flags())
	cmd.Flags().Var(&ttl, "ttl", "the TTL that locks of this store have")
	return cmd
}

// A diagnosis is the output of stile doctor.
type diagnosis struct {
	Store string `json:"store,omitempty"`
	From  string `json:"store_from,omitempty"`
	TTL   string `json:"ttl"`
	// Error says why the store could not be examined.
	Error    string          `json:"error,omitempty"`
	Findings []store.Finding `json:"findings"`
}

func (d *diagnosis) add(all ...store.Finding) { d.Findings = append(d.Findings, all...) }

// finding returns a finding of this machine, not of a store.
func finding(id string, severity store.Severity, what, advice string) store.Finding {
	return store.Finding{ID: id, Severity: severity, What: what, Advice: advice}
}

// make examines this machine and the chosen store. The error means that the store could not be examined.
func (d *diagnosis) make(ctx context.Context, url string, ttl time.Duration) error {
	chosen, err := chooseStore(url)
	if err == nil {
		d.Store, d.From = chosen.shown(), chosen.from
	}
	isLocal := err == nil && chosen.url == local.URL
	d.examineMachine(chosen)
	d.examineLocalServer(ctx, isLocal)
	if err != nil {
		return err
	}
	opened, err := storeurl.Open(ctx, chosen.url, nil)
	switch {
	case isLocal && err != nil: // examineLocalServer has said why
		if errors.Is(err, localserver.ErrNone) || d.has("local-server", store.Attention) {
			return nil
		}
		return chosen.explain(err)
	case err != nil:
		return chosen.explain(err)
	}
	defer func() { _ = opened.Close() }() // nothing was written that could be lost
	d.examineSecrets(opened, chosen)
	examiner, ok := opened.Store.(store.Examiner)
	if !ok { // all others are
		f := finding("mem-store", store.Risk, "locks in the memory of a process exclude no other process", "use another store, except in tests")
		f.Promise = "P1"
		d.add(f)
		return nil
	}
	found, err := examiner.Examine(ctx, ttl)
	d.add(found...)
	if err != nil {
		return chosen.explain(err)
	}
	return nil
}

func (d *diagnosis) has(id string, severity store.Severity) bool {
	return slices.ContainsFunc(d.Findings, func(f store.Finding) bool { return f.ID == id && f.Severity == severity })
}

// examineMachine says whether this user is kept out of the machine's own server.
func (d *diagnosis) examineMachine(chosen choice) {
	if chosen.deniedSocket == "" {
		return
	}
	f := finding("machine-server", store.Attention,
		fmt.Sprintf("there is a lock server for this machine, but you may not connect to %s; your locks are in a server of your own, and "+
			"do not exclude those of its users", chosen.deniedSocket),
		"join the group of the socket")
	f.Promise = "P1"
	d.add(f)
}

// examineLocalServer examines this user's local server, which need not run, and looks for those of others.
func (d *diagnosis) examineLocalServer(ctx context.Context, isChosen bool) {
	dir, err := local.DefaultServerDir()
	if err != nil {
		if isChosen {
			d.add(finding("local-server", store.Attention, textOf(err), "name a store with --url or STILE_URL"))
		}
		return
	}
	switch err := probeLocalServer(ctx); {
	case errors.Is(err, localserver.ErrNone):
		if isChosen {
			d.add(finding("local-server", store.Fine, "your local server does not run; commands that need it start it", ""))
		}
	case err != nil:
		what, advice := splitAdvice(textOf(err))
		d.add(finding("local-server", store.Attention, what, advice))
	default:
		d.add(finding("local-server", store.Fine, "your local server runs (pid "+dir.PID()+"), and only you can reach its socket", ""))
	}
	if !isChosen {
		return
	}
	user := dir.Neighbor()
	if user == "" {
		d.add(finding("local-neighbor", store.Fine, "no other user's local server runs on this machine", ""))
		return
	}
	f := finding("local-neighbor", store.Attention,
		fmt.Sprintf("%s uses a local lock server on this machine too; your locks and theirs do not exclude each other", user),
		"if they should, share one server: see examples/serve/README.md, several users")
	f.Promise = "P1"
	d.add(f)
}

// probeLocalServer returns an error if the server cannot be used; [localserver.ErrNone] if none runs.
func probeLocalServer(ctx context.Context) error {
	opened, err := storeurl.Open(ctx, local.URL, nil)
	if err != nil {
		return local.OrOtherStore(err)
	}
	return opened.Close()
}

// splitAdvice splits the text of an error of package local, whose advice follows a colon.
func splitAdvice(text string) (what, advice string) {
	if i := strings.LastIndex(text, ": "); i >= 0 {
		return text[:i], text[i+2:]
	}
	return text, "name a store with --url or STILE_URL"
}

// examineSecrets says which secrets other users of the machine can read.
func (d *diagnosis) examineSecrets(opened *storeurl.Conn, chosen choice) {
	found := slices.Concat(opened.Warnings, chosen.warnings())
	for _, text := range found {
		what, advice, _ := strings.Cut(text, "; ")
		d.add(finding("url-secret", store.Attention, what, advice))
	}
	if len(found) == 0 {
		d.add(finding("url-secret", store.Fine, "no other user of this machine can read a file with a secret of the store's URL", ""))
	}
}

// text formats the findings, the worst first.
func (d *diagnosis) text() []byte {
	var buf bytes.Buffer
	if d.Store != "" {
		why := "because nothing names another"
		if d.From != "" {
			why = "named by " + d.From
		}
		fmt.Fprintf(&buf, "store %s (%s), for a TTL of %s\n", plain(d.Store), plain(why), d.TTL)
	}
	for _, group := range []struct {
		severity   store.Severity
		title, has string
	}{
		{store.Risk, "a promise is at risk", "✗"},
		{store.Attention, "worth attention", "!"},
		{store.Fine, "fine", "✓"},
	} {
		first := true
		for _, f := range d.Findings {
			if f.Severity != group.severity {
				continue
			}
			if first {
				fmt.Fprintf(&buf, "\n%s\n", group.title)
				first = false
			}
			writeFinding(&buf, group.has, f)
		}
	}
	return buf.Bytes()
}

func writeFinding(buf *bytes.Buffer, mark string, f store.Finding) {
	promise := ""
	if f.Promise != "" {
		promise = " (" + f.Promise + ")"
	}
	fmt.Fprintf(buf, "%s %s%s: %s\n", mark, f.ID, promise, plain(f.What))
	if len(f.Servers) > 0 && f.Severity != store.Fine {
		fmt.Fprintf(buf, "  at: %s\n", plain(strings.Join(f.Servers, ", ")))
	}
	if f.Advice != "" {
		fmt.Fprintf(buf, "  do: %s\n", plain(f.Advice))
	}
}

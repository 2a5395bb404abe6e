package page

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/stilelock/stile"
	"github.com/stilelock/stile/cmd/stile/internal/observe"
)

// storeTimeout limits a request to the store.
const storeTimeout = 20 * time.Second

func (p *Page) getWaits(context.Context, *struct{}) (body *waitsBody, err error) {
	p.answers.outside(func() { body, err = p.waits.get(p.readWaits) })
	return body, err
}

// readWaits reads all lines. It does not depend on one request, because its result is for others too.
func (p *Page) readWaits() (*waitsBody, error) {
	ctx, cancel := context.WithTimeout(p.ending, storeTimeout)
	defer cancel()
	g, err := p.client.WaitGraph(ctx, "")
	switch {
	case errors.Is(err, stile.ErrUnsupported):
		return nil, huma.Error501NotImplemented(textOf(err))
	case err != nil:
		return nil, huma.Error502BadGateway(textOf(err))
	}
	body := &waitsBody{Waits: waitsOf(g.Waits), Cycles: g.Cycles}
	body.cut()
	return body, nil
}

// cut leaves out that for which an answer has no room. It keeps the cycles rather than other waits.
func (b *waitsBody) cut() {
	cycles, waits, bytes := len(b.Cycles), len(b.Waits), room{maxAnswerBytes}
	b.Cycles = slices.DeleteFunc(b.Cycles, func(names []string) bool { return !bytes.fits(sizeOfNames(names...)) })
	b.Waits = slices.DeleteFunc(b.Waits, func(w wait) bool {
		return !bytes.fits(observe.SizeOf(&w.Waiter) + sizeOfNames(w.WaitsFor) + sizeOfNames(w.Holds...))
	})
	b.OmittedCycles, b.Omitted = cycles-len(b.Cycles), waits-len(b.Waits)
}

// sizeOfNames returns about how many bytes of memory names take.
func sizeOfNames(names ...string) (n int) {
	for _, name := range names {
		n += 16 + len(name)
	}
	return n
}

// waitsOf joins what a holder of several locks has published at each of them.
func waitsOf(graph []stile.HolderWait) []wait {
	type waiter struct {
		session, host string
		pid           int
		waitsFor      string
		since         int64
	}
	waits, index := []wait{}, map[waiter]int{}
	for _, w := range graph {
		by := waiter{w.Holder.Session, w.Holder.Owner.Host, w.Holder.Owner.PID, w.For, w.Since.UnixNano()}
		i, ok := index[by]
		if !ok {
			i = len(waits)
			index[by] = i
			waits = append(waits, wait{Waiter: w.Holder, WaitsFor: w.For, Since: w.Since})
		}
		waits[i].Holds = append(waits[i].Holds, w.Held)
	}
	return waits
}

// maxBlamed is how many holders are blamed.
const maxBlamed = 100

type blameInput struct {
	Prefix string `query:"prefix" doc:"Only locks whose name begins with it."`
}

// allBlame is what the observer says about all locks.
type allBlame struct {
	since time.Time
	blame []observe.Blame
}

func (p *Page) getBlame(_ context.Context, in *blameInput) (*blameBody, error) {
	all, _ := p.blame.get(func() (*allBlame, error) { // never fails
		since, blame := p.observer.Blame()
		return &allBlame{since, blame}, nil
	})
	body := &blameBody{Since: all.since, Blame: []blamed{}}
	for _, b := range all.blame {
		if !strings.HasPrefix(b.Name, in.Prefix) {
			continue
		}
		if body.Blame = append(body.Blame, blamed{
			Holder: b.Holder, Name: b.Name, Key: keyOf(b.Name), Waited: b.Waited.Seconds(), Waiters: b.Waiters, Holds: b.Holds,
		}); len(body.Blame) == maxBlamed {
			break
		}
	}
	return body, nil
}

type breakInput struct {
	Body breakRequest
}

type breakRequest struct {
	Name   string `json:"name,omitempty" doc:"The lock's name."`
	Key    string `json:"key,omitempty" doc:"The key of its name, instead of name."`
	Token  string `json:"token" pattern:"^[0-9]{1,20}$" patternDescription:"decimal number" doc:"The token of the holder or waiter to remove."`
	Reason string `json:"reason" minLength:"1" maxLength:"500" doc:"Why, for the server's log."`
}

// postBreak removes an entry. Each attempt is one line in the log, whatever comes of it.
func (p *Page) postBreak(ctx context.Context, in *breakInput) (*brokenBody, error) {
	who := grantOf(ctx)
	name, err := chosenName(in.Body.Name, in.Body.Key)
	token, tokenErr := strconv.ParseUint(in.Body.Token, 10, 64)
	switch {
	case !p.cfg.AllowBreak:
		return nil, huma.Error403Forbidden("breaking locks is off; start stile serve with --allow-break")
	case who.role != RoleBreak:
		return nil, huma.Error403Forbidden("breaking a lock needs a token of the role break; this one has the role read")
	case err != nil:
		return nil, err
	case tokenErr != nil: // the pattern admits only digits
		return nil, huma.Error422UnprocessableEntity("token: it is larger than any token")
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), storeTimeout) // the client may go away meanwhile
	defer cancel()
	p.observer.Broken(name, token)
	entry, err := p.client.Break(ctx, name, token)
	result := "removed"
	switch {
	case errors.Is(err, stile.ErrGone):
		result = "no entry has that token"
		err = huma.Error404NotFound(fmt.Sprintf("no holder or waiter of this lock has the token %d; nothing changed", token))
	case err != nil:
		result = "not known: " + textOf(err)
		err = huma.Error502BadGateway(textOf(err) + "; look at the line to see whether the entry was removed")
	}
	p.cfg.Logger.Warn("break requested through the page", "lock", name, "token", token, "reason", in.Body.Reason,
		"result", result, "role", string(who.role), "tokens_line", who.line, "from", who.from, "owner", entry.Owner.String())
	if err != nil {
		return nil, err
	}
	return &brokenBody{name, entry, argumentOf(name), keyOf(name)}, nil
}

package page

import (
	"encoding/base64"
	"reflect"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/stilelock/stile"
	"github.com/stilelock/stile/cmd/stile/internal/lockname"
	"github.com/stilelock/stile/cmd/stile/internal/observe"
	"github.com/stilelock/stile/store"
)

// Line is a line as stile ls -o json prints it, with the key of its name. It has at most the entries for which an answer
// has room.
type Line struct {
	stile.Line
	Argument string `json:"argument,omitempty"`
	Key      string `json:"key"`
	Omitted  int    `json:"omitted,omitempty"`
}

func lineOf(l stile.Line) Line { return lineWithin(l, maxAnswerBytes) }

// lineWithin returns a line that is cut to so many bytes.
func lineWithin(l stile.Line, maxBytes int) Line {
	l, omitted := cut(l, maxBytes)
	return Line{l, argumentOf(l.Name), keyOf(l.Name), omitted}
}

// argumentOf returns the argument of stile's commands for a name, or "" if it is the name itself.
func argumentOf(name string) string {
	if arg := lockname.Argument(name); arg != name {
		return arg
	}
	return ""
}

// keyOf returns the key of a name: JSON cannot represent every name.
func keyOf(name string) string { return base64.RawURLEncoding.EncodeToString([]byte(name)) }

// nameOf returns the name of a key.
func nameOf(key string) (string, error) {
	name, err := base64.RawURLEncoding.Strict().DecodeString(strings.TrimRight(key, "="))
	return string(name), err
}

// Status says how recent the lines are.
type Status struct {
	Read  bool      `json:"read" doc:"Whether all lines have been read at least once."`
	Error string    `json:"error" doc:"Why the last reading failed; the lines may be out of date then. Empty if it succeeded."`
	Since time.Time `json:"since" doc:"Since when this has been so: the present error, or its absence."`
}

func statusOf(s observe.Status) Status {
	status := Status{Read: s.Read, Since: s.Since}
	if s.Err != nil {
		status.Error = textOf(s.Err)
	}
	return status
}

// textOf returns the text of an error without the prefix of the library.
func textOf(err error) string { return strings.TrimPrefix(err.Error(), "stile: ") }

// Event is something that happened to an entry.
type Event struct {
	Time   time.Time   `json:"time" doc:"When stile serve saw it, by its clock."`
	What   string      `json:"what" enum:"waits,holds,ended,left" doc:"The entry joined the line; was admitted; its hold ended; or it left without having been admitted."`
	Entry  stile.Entry `json:"entry"`
	Cause  string      `json:"cause,omitempty" enum:"released,lost,broken" doc:"Why the hold ended or the waiter left. Broken: through this server; what another process broke counts as released. Absent if it is not known."`
	Waited float64     `json:"waited_seconds,omitempty" doc:"How long the entry had waited. Absent if it is not known."`
	Held   float64     `json:"held_seconds,omitempty" doc:"How long the entry had held the lock. Absent if it is not known."`
}

func eventsOf(events []observe.Event) []Event {
	all := make([]Event, 0, len(events))
	for _, e := range events {
		all = append(all, Event{
			Time: e.Time, What: e.What, Entry: e.Entry, Cause: e.Cause, Waited: e.Waited.Seconds(), Held: e.Held.Seconds(),
		})
	}
	return all
}

type serverBody struct {
	Stile      string `json:"stile" doc:"The version of stile."`
	Store      string `json:"store" doc:"The store, without secrets."`
	Boot       string `json:"boot" doc:"Identifies this run of the server. Updates of another run mean nothing to it."`
	AllowBreak bool   `json:"allow_break" doc:"Whether the server was started with --allow-break."`
	Role       Role   `json:"role" enum:",read,break" doc:"The role of the request's token. Empty if it has none."`
	Status
}

type linesBody struct {
	Lines  []Line `json:"lines" nullable:"false" doc:"The lines, in the order of the bytes of their names."`
	Next   string `json:"next,omitempty" doc:"Pass it as after for the lines that follow. Absent at the end."`
	Update string `json:"update" doc:"Pass that of the first page as after to /api/v1/events, to get all that has changed since."`
	Status
}

type historyBody struct {
	Name   string  `json:"name"`
	Key    string  `json:"key"`
	Events []Event `json:"events" nullable:"false" doc:"Of the last hour, at most the last 256 changes, and 4 MB."`
}

type changedLine struct {
	Line   Line    `json:"line" doc:"The line as it is now."`
	Events []Event `json:"events" nullable:"false" doc:"What has happened, in order. Empty if only something else has changed, such as the data of an owner."`
}

// changes is the data of the event lines.
type changes struct {
	Lines []changedLine `json:"lines" nullable:"false"`
}

// reset is the data of the event reset.
type reset struct {
	Update string `json:"update"`
}

type leasesBody struct {
	Leases []lineLeases `json:"leases" nullable:"false"`
}

type lineLeases struct {
	Key     string  `json:"key"`
	Entries []lease `json:"entries" nullable:"false"`
}

type lease struct {
	Token     uint64  `json:"token,string"`
	Session   string  `json:"session"`
	Remaining float64 `json:"remaining_seconds,omitempty" doc:"How long the session will live if it is not renewed. Absent if it is not known."`
}

type waitsBody struct {
	Waits  []wait     `json:"waits" nullable:"false"`
	Cycles [][]string `json:"cycles" nullable:"false" doc:"Names of locks whose holders wait for each other: a holder of each waits for the next one, and a holder of the last for the first."`
	// What follows is left out, because an answer has room for maxAnswerBytes.
	Omitted       int `json:"omitted,omitempty" doc:"How many more waits there are; an answer has room for 4 MB. Absent if there are none."`
	OmittedCycles int `json:"omitted_cycles,omitempty" doc:"How many more cycles there are. Absent if there are none."`
}

type wait struct {
	Waiter   stile.Entry `json:"waiter" doc:"The entry with which the waiter holds the first of these locks."`
	WaitsFor string      `json:"waits_for" doc:"The name of the lock that it waits for."`
	Holds    []string    `json:"holds" nullable:"false" doc:"The names of the locks that it holds meanwhile."`
	Since    time.Time   `json:"since" doc:"When the wait began, by the waiter's clock."`
}

type blameBody struct {
	Since time.Time `json:"since" doc:"Waiting has been counted since then: for an hour, or since the server began."`
	Blame []blamed  `json:"blame" nullable:"false"`
}

type blamed struct {
	Holder  store.Owner `json:"holder" doc:"The owner of the latest of the holds."`
	Name    string      `json:"name"`
	Key     string      `json:"key"`
	Waited  float64     `json:"waited_seconds" doc:"How long others waited while this holder had the lock: the sum over all waiters. If several held the lock, each is charged an equal part."`
	Waiters int         `json:"waiters" doc:"How many others waited."`
	Holds   int         `json:"holds" doc:"How many holds are charged."`
}

type brokenBody struct {
	Name string `json:"name"`
	stile.Entry
	Argument string `json:"argument,omitempty"`
	Key      string `json:"key"`
}

// The types that follow only describe others in the OpenAPI document: those have no tags for it, and their
// JSON differs from what reflection finds. Their names end with Doc, which is left out there.

type lineDoc struct {
	Name     string     `json:"name" doc:"The lock's name. If it is not valid UTF-8, only argument and key are exact."`
	Holders  []entryDoc `json:"holders" nullable:"false"`
	Waiters  []entryDoc `json:"waiters" nullable:"false" doc:"In order."`
	Limit    int        `json:"limit,omitempty" doc:"The operator's limit of slots. Absent if there is none."`
	Remarks  []string   `json:"remarks,omitempty" nullable:"false" doc:"What is wrong with the line, and what to do about it."`
	Argument string     `json:"argument,omitempty" doc:"The name as an argument of stile's commands, if that differs: a Go string in double quotes."`
	Key      string     `json:"key" doc:"The bytes of the name in base64url without padding."`
	Omitted  int        `json:"omitted,omitempty" doc:"How many more entries there are after these; an answer has room for 5000 with 4 MB. Absent if there are none."`
}

type entryDoc struct {
	Token     string   `json:"token" pattern:"^[0-9]+$" doc:"The fencing token of the entry's first hold; 0 if the store does not know it."`
	Mode      string   `json:"mode" pattern:"^(exclusive|shared|slot/[0-9]+)$"`
	Owner     ownerDoc `json:"owner"`
	Foreign   bool     `json:"foreign,omitempty" doc:"A client other than Stile made the entry."`
	Session   string   `json:"session" doc:"The session in the store."`
	Remaining int64    `json:"remaining_ns,omitempty" doc:"How many nanoseconds the session will live if it is not renewed. Absent if it is not known."`
}

type ownerDoc struct {
	Host     string            `json:"host,omitempty"`
	PID      int               `json:"pid,omitempty"`
	User     string            `json:"user,omitempty"`
	Command  string            `json:"command,omitempty"`
	Reason   string            `json:"reason,omitempty"`
	Labels   map[string]string `json:"labels,omitempty"`
	Value    string            `json:"value,omitempty" doc:"What a candidate or leader of an election publishes."`
	Since    time.Time         `json:"since,omitzero" doc:"When the entry joined its line, by the owner's clock."`
	Obtained time.Time         `json:"obtained,omitzero" doc:"When it was admitted, by the owner's clock."`
	Waits    []ownerWaitDoc    `json:"waits,omitempty" nullable:"false" doc:"Other locks that the owner has been waiting for while it holds this one."`
	Under    []heldDoc         `json:"under,omitempty" nullable:"false" doc:"Locks under which the owner's process runs."`
	Lingers  bool              `json:"lingers,omitempty" doc:"The owner may have released the lock and only keep it, until another client wants it."`
}

type ownerWaitDoc struct {
	Name  string    `json:"name"`
	Since time.Time `json:"since,omitzero"`
}

type heldDoc struct {
	Name  string `json:"name"`
	Token string `json:"token" pattern:"^[0-9]+$"`
}

type leaseDoc struct {
	Token     string  `json:"token" pattern:"^[0-9]+$"`
	Session   string  `json:"session"`
	Remaining float64 `json:"remaining_seconds,omitempty" doc:"How long the session will live if it is not renewed. Absent if it is not known."`
}

type brokenDoc struct {
	Name     string   `json:"name"`
	Token    string   `json:"token" pattern:"^[0-9]+$"`
	Mode     string   `json:"mode"`
	Owner    ownerDoc `json:"owner"`
	Foreign  bool     `json:"foreign,omitempty"`
	Session  string   `json:"session"`
	Remains  int64    `json:"remaining_ns,omitempty"`
	Argument string   `json:"argument,omitempty"`
	Key      string   `json:"key"`
}

func newRegistry() huma.Registry {
	registry := huma.NewMapRegistry("#/components/schemas/", func(t reflect.Type, hint string) string {
		name := strings.TrimSuffix(huma.DefaultSchemaNamer(t, hint), "Doc")
		return strings.TrimSuffix(name, "Body")
	})
	registry.RegisterTypeAlias(reflect.TypeFor[Line](), reflect.TypeFor[lineDoc]())
	registry.RegisterTypeAlias(reflect.TypeFor[stile.Entry](), reflect.TypeFor[entryDoc]())
	registry.RegisterTypeAlias(reflect.TypeFor[store.Owner](), reflect.TypeFor[ownerDoc]())
	registry.RegisterTypeAlias(reflect.TypeFor[lease](), reflect.TypeFor[leaseDoc]())
	registry.RegisterTypeAlias(reflect.TypeFor[brokenBody](), reflect.TypeFor[brokenDoc]())
	return registry
}

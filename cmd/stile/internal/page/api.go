package page

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"slices"
	"strings"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"

	"github.com/stilelock/stile"
)

const (
	maxLines   = 1000
	breakPath  = "/api/v1/break"
	eventsPath = "/api/v1/events"
)

// handler returns the handler of all requests.
func (p *Page) handler() http.Handler {
	mux := http.NewServeMux()
	api := http.NewServeMux()
	description := p.register(api)
	mux.Handle("/api/", p.answers.keep(api))
	mux.Handle(eventsPath, api) // its answers have no end
	mux.Handle(breakPath, api)  // its answers are small, and the client may send its request slowly
	mux.HandleFunc("GET /openapi.json", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write(description) // the client may be gone
	})
	if p.metrics != nil {
		mux.Handle("GET /metrics", p.answers.keep(p.metrics))
	}
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, r *http.Request) { serveFile(w, r, "index.html") })
	mux.HandleFunc("GET /static/{file...}", func(w http.ResponseWriter, r *http.Request) { serveFile(w, r, r.PathValue("file")) })
	notFound := func(w http.ResponseWriter, _ *http.Request) { refuse(w, http.StatusNotFound, "there is no such page") }
	api.HandleFunc("/", notFound)
	mux.HandleFunc("/", notFound)
	return p.secure(mux)
}

// register adds the API to mux, and returns its description as an OpenAPI document.
func (p *Page) register(mux *http.ServeMux) []byte {
	api := humago.New(mux, huma.Config{
		// Without paths for documents and schemas: huma's pages load scripts from the internet.
		OpenAPI: &huma.OpenAPI{
			OpenAPI: "3.1.0",
			Info: &huma.Info{
				Title: "Stile", Version: "1",
				Description: "What stile serve knows about the locks of its store. Times are RFC 3339. The name of a field with a duration has its unit. " +
					"A name is given as name, its bytes percent-encoded, or as key, the base64url of its bytes.",
			},
			Components: &huma.Components{
				Schemas: newRegistry(),
				SecuritySchemes: map[string]*huma.SecurityScheme{
					"token": {Type: "http", Scheme: "bearer", Description: "A token of --page-tokens, if the server was started with it."},
				},
			},
			Security: []map[string][]string{{"token": {}}, {}},
		},
		Formats:       map[string]huma.Format{"application/json": format, "json": format},
		DefaultFormat: "application/json",
		Transformers:  []huma.Transformer{explain},
	})
	get(api, "server", "This server, and what the request may do", p.getServer)
	get(api, "lines", "Lines with holders or waiters, by name", p.getLines)
	get(api, "line", "One line; it is empty if the name has no holders and waiters", p.getLine)
	get(api, "history", "What happened to a line in the last hour", p.getHistory)
	get(api, "leases", "How long the sessions of lines will live if they are not renewed: for what a user looks at, once a second", p.getLeases)
	get(api, "waits", "Holders that wait for other locks, and deadlocks", p.getWaits)
	get(api, "blame", "Holders for which others have waited longest in the last hour", p.getBlame)
	p.registerEvents(api)
	register(api, huma.Operation{
		OperationID: "break", Method: http.MethodPost, Path: breakPath,
		MaxBodyBytes: maxBodyBytes, BodyReadTimeout: requestTimeout,
		Summary:     "Remove a holder or a waiter",
		Description: "As stile break does. It needs stile serve --allow-break and a token of the role break.",
	}, p.postBreak)
	text, err := json.Marshal(api.OpenAPI())
	if err != nil {
		panic(err) // the document does not depend on any input
	}
	return text
}

// format encodes the bodies of answers as JSON, on one line.
var format = huma.Format{
	Marshal: func(w io.Writer, v any) error {
		text, err := json.Marshal(v)
		if err == nil {
			_, err = w.Write(append(text, '\n'))
		}
		return err
	},
	Unmarshal: json.Unmarshal,
}

// explain puts what is wrong with the input of a request into the detail of the answer, where people look.
func explain(_ huma.Context, _ string, v any) (any, error) {
	problem, ok := v.(*huma.ErrorModel)
	if !ok || len(problem.Errors) == 0 {
		return v, nil
	}
	var all []string
	for _, e := range problem.Errors {
		_, field, ok := strings.Cut(e.Location, ".") // query.limit, body.token
		if !ok {
			field = "the " + e.Location
		}
		all = append(all, field+": "+e.Message)
	}
	problem.Detail, problem.Errors = strings.Join(all, "; "), nil
	return problem, nil
}

// get registers GET /api/v1/NAME.
func get[I, B any](api huma.API, name, summary string, f func(context.Context, *I) (*B, error)) {
	register(api, huma.Operation{OperationID: name, Method: http.MethodGet, Path: "/api/v1/" + name, Summary: summary}, f)
}

func register[I, B any](api huma.API, op huma.Operation, f func(context.Context, *I) (*B, error)) {
	huma.Register(api, op, func(ctx context.Context, in *I) (*output[B], error) {
		body, err := f(ctx, in)
		if err != nil {
			return nil, err
		}
		return &output[B]{body}, nil
	})
}

type output[B any] struct{ Body *B }

// nameInput names a lock.
type nameInput struct {
	Name string `query:"name" doc:"The name's bytes."`
	Key  string `query:"key" doc:"The name's bytes in base64url, instead of name."`
}

func (in *nameInput) name() (string, error) { return chosenName(in.Name, in.Key) }

// chosenName returns the name that is given by itself or as a key.
func chosenName(name, key string) (string, error) {
	switch {
	case name == "" && key == "":
		return "", huma.Error400BadRequest("name or key is missing")
	case name != "" && key != "":
		return "", huma.Error400BadRequest("name and key are both given; one is enough")
	case name != "":
		return name, nil
	}
	name, err := nameOf(key)
	if err != nil {
		return "", huma.Error400BadRequest("the key is not base64url")
	}
	return name, nil
}

func (p *Page) getServer(ctx context.Context, _ *struct{}) (*serverBody, error) {
	return &serverBody{
		Stile: p.cfg.Version, Store: p.cfg.Store, Boot: p.observer.Boot(),
		AllowBreak: p.cfg.AllowBreak, Role: grantOf(ctx).role,
		Status: statusOf(p.observer.Status()),
	}, nil
}

type linesInput struct {
	Prefix   string `query:"prefix" doc:"Only lines whose name begins with it."`
	Contains string `query:"contains" doc:"Only lines whose name contains it."`
	After    string `query:"after" doc:"The key of a name: only lines after it. It is next of the previous answer."`
	Limit    int    `query:"limit" minimum:"1" maximum:"1000" default:"100" doc:"How many lines at most. There are fewer in an answer if they have thousands of waiters."`
}

func (p *Page) getLines(_ context.Context, in *linesInput) (*linesBody, error) {
	after, err := nameOf(in.After)
	if err != nil {
		return nil, huma.Error400BadRequest("after is not the next of an answer")
	}
	// The number comes first, so that no change is missing in both the lines and the updates after it.
	body := &linesBody{Lines: []Line{}, Update: p.updateID(p.observer.Last()), Status: statusOf(p.observer.Status())}
	entries, bytes := 0, 0
	for {
		lines, more := p.observer.Lines(in.Prefix, after, maxLines)
		for _, l := range lines {
			if !strings.Contains(l.Name, in.Contains) {
				continue
			}
			entries += len(l.Holders) + len(l.Waiters)
			bytes += sizeOf(l)
			if n := len(body.Lines); n == in.Limit || n > 0 && (entries > maxEntries || bytes > maxAnswerBytes) {
				body.Next = body.Lines[n-1].Key
				return body, nil
			}
			body.Lines = append(body.Lines, lineOf(l))
		}
		if !more {
			return body, nil
		}
		after = lines[len(lines)-1].Name
	}
}

func (p *Page) getLine(_ context.Context, in *nameInput) (*Line, error) {
	name, err := in.name()
	if err != nil {
		return nil, err
	}
	l := lineOf(p.observer.Line(name))
	return &l, nil
}

func (p *Page) getHistory(_ context.Context, in *nameInput) (*historyBody, error) {
	name, err := in.name()
	if err != nil {
		return nil, err
	}
	return &historyBody{Name: name, Key: keyOf(name), Events: eventsOf(p.observer.History(name))}, nil
}

type leasesInput struct {
	Keys []string `query:"key,explode" required:"true" minItems:"1" maxItems:"100" nullable:"false" doc:"The keys of the lines. The answer ends after a line with which it has more than 5000 entries."`
}

func (p *Page) getLeases(_ context.Context, in *leasesInput) (*leasesBody, error) {
	names := make([]string, 0, len(in.Keys))
	for _, key := range in.Keys {
		name, err := nameOf(key)
		if err != nil {
			return nil, huma.Error400BadRequest("a key is not base64url")
		}
		names = append(names, name)
	}
	slices.Sort(names)
	names = slices.Compact(names)
	p.observer.Look(names)
	body := &leasesBody{Leases: []lineLeases{}}
	entries := 0
	for _, name := range names {
		if entries > maxEntries {
			break
		}
		of := lineLeases{Key: keyOf(name), Entries: []lease{}}
		l, _ := cut(p.observer.Line(name), maxAnswerBytes)
		for _, part := range [][]stile.Entry{l.Holders, l.Waiters} {
			entries += len(part)
			for _, e := range part {
				of.Entries = append(of.Entries, lease{e.Token, e.Session, e.Remaining.Seconds()})
			}
		}
		body.Leases = append(body.Leases, of)
	}
	return body, nil
}

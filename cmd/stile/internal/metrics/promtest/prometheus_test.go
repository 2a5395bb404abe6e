package promtest

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"math"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/textparse"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/rules"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/tsdb"
)

// scrapeInterval is the time between two scrapes, and between two evaluations of the rules.
const scrapeInterval = 30 * time.Second

// A scrape is a page of metrics, and when Prometheus got it.
type scrape struct {
	at                time.Time
	body, contentType string
}

// scrapeFrom requests a page of metrics. The time is the caller's, because queries over minutes must not take minutes.
func scrapeFrom(t *testing.T, handler http.Handler, at time.Time) scrape {
	t.Helper()
	recorder := httptest.NewRecorder()
	handler.ServeHTTP(recorder, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	if recorder.Code != http.StatusOK {
		t.Fatalf("GET /metrics: got %d: %s", recorder.Code, recorder.Body)
	}
	return scrape{at, recorder.Body.String(), recorder.Header().Get("Content-Type")}
}

// prometheus is a database with the query engine and the rules of Prometheus.
type prometheus struct {
	db     *tsdb.DB
	engine *promql.Engine
	parser parser.Parser
}

// newPrometheus returns a Prometheus that has scraped these pages, in order of time.
func newPrometheus(t *testing.T, scrapes []scrape) *prometheus {
	t.Helper()
	opts := tsdb.DefaultOptions()
	opts.MinBlockDuration = (24 * time.Hour).Milliseconds() // all samples fit into the head
	opts.MaxBlockDuration = opts.MinBlockDuration
	db, err := tsdb.Open(t.TempDir(), nil, nil, opts, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
	p := &prometheus{db: db, parser: parser.NewParser(parser.Options{})}
	p.engine = promql.NewEngine(promql.EngineOpts{
		MaxSamples: 10_000_000, Timeout: time.Minute, LookbackDelta: 5 * time.Minute, Parser: p.parser,
	})
	t.Cleanup(func() { _ = p.engine.Close() })
	for _, s := range scrapes {
		p.add(t, s)
	}
	return p
}

// add adds the samples of a page, with the labels that Prometheus adds to a target.
func (p *prometheus) add(t *testing.T, s scrape) {
	t.Helper()
	page, err := textparse.New([]byte(s.body), s.contentType, nil, textparse.ParserOptions{})
	if err != nil {
		t.Fatal(err)
	}
	app := p.db.AppenderV2(t.Context())
	for {
		kind, err := page.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if kind != textparse.EntrySeries {
			continue
		}
		_, _, value := page.Series()
		var series labels.Labels
		page.Labels(&series)
		b := labels.NewBuilder(series)
		b.Set("job", "stile")
		b.Set("instance", "127.0.0.1:7845")
		if _, err := app.Append(0, b.Labels(), 0, s.at.UnixMilli(), value, nil, nil, storage.AppendV2Options{}); err != nil {
			t.Fatal(err)
		}
	}
	if err := app.Commit(); err != nil {
		t.Fatal(err)
	}
}

// query returns the series of an expression whose values are numbers.
func (p *prometheus) query(t *testing.T, expr string, at time.Time) promql.Vector {
	t.Helper()
	q, err := p.engine.NewInstantQuery(t.Context(), p.db, nil, expr, at)
	if err != nil {
		t.Errorf("%s: %v", expr, err)
		return nil
	}
	defer q.Close()
	result := q.Exec(t.Context())
	v, err := result.Vector()
	if err != nil {
		t.Errorf("%s: %v", expr, err)
		return nil
	}
	return slices.DeleteFunc(slices.Clone(v), func(s promql.Sample) bool { return math.IsNaN(s.F) })
}

// groups loads a file of rules, as Prometheus does.
func (p *prometheus) groups(t *testing.T, file string) []*rules.Group {
	t.Helper()
	m := rules.NewManager(&rules.ManagerOptions{
		QueryFunc:    rules.EngineQueryFunc(p.engine, p.db),
		NotifyFunc:   func(context.Context, string, ...*rules.Alert) {},
		Context:      t.Context(),
		AppendableV2: p.db,
		Queryable:    p.db,
		Logger:       slog.New(slog.NewTextHandler(t.Output(), nil)),
		Parser:       p.parser,
	})
	loaded, errs := m.LoadGroups(scrapeInterval, labels.EmptyLabels(), "", nil, false, file)
	for _, err := range errs {
		t.Error(err)
	}
	var groups []*rules.Group
	for _, g := range loaded {
		groups = append(groups, g)
	}
	return groups
}

// firing evaluates the rules from one time to another. It returns the alerts that have fired meanwhile, and those that
// still do at the end, each sorted.
func (p *prometheus) firing(t *testing.T, file string, from, to time.Time) (fired, last []string) {
	t.Helper()
	groups := p.groups(t, file)
	for at := from; !at.After(to); at = at.Add(scrapeInterval) {
		last = nil
		for _, g := range groups {
			g.Eval(t.Context(), at)
			for _, rule := range g.AlertingRules() {
				if err := rule.LastError(); err != nil {
					t.Fatalf("%s: %v", rule.Name(), err)
				}
				for _, alert := range rule.ActiveAlerts() {
					if alert.State != rules.StateFiring {
						continue
					}
					last = append(last, rule.Name())
					alert.Annotations.Range(func(l labels.Label) {
						if strings.Contains(l.Value, "<error") || strings.Contains(l.Value, "{{") || strings.Contains(l.Value, "<no value>") {
							t.Fatalf("%s: %s: %s", rule.Name(), l.Name, l.Value)
						}
					})
				}
			}
		}
		fired = append(fired, last...)
	}
	slices.Sort(fired)
	slices.Sort(last)
	return slices.Compact(fired), slices.Compact(last)
}

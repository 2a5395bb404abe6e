package page_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/stilelock/stile"
	"github.com/stilelock/stile/cmd/stile/internal/page"
)

// description is the OpenAPI document of the page.
type description struct {
	compiler *jsonschema.Compiler
	mu       sync.Mutex
	compiled map[string]*jsonschema.Schema
}

const documentURL = "http://stile/openapi.json"

func newDescription(document string) (*description, error) {
	parsed, err := jsonschema.UnmarshalJSON(strings.NewReader(document))
	if err != nil {
		return nil, err
	}
	d := &description{compiler: jsonschema.NewCompiler(), compiled: map[string]*jsonschema.Schema{}}
	d.compiler.AssertFormat()
	return d, d.compiler.AddResource(documentURL, parsed)
}

// check checks JSON against the schema at a JSON pointer in the document.
func (d *description) check(pointer, text string) error {
	d.mu.Lock()
	schema := d.compiled[pointer]
	if schema == nil {
		var err error
		if schema, err = d.compiler.Compile(documentURL + "#" + pointer); err != nil {
			d.mu.Unlock()
			return err
		}
		d.compiled[pointer] = schema
	}
	d.mu.Unlock()
	value, err := jsonschema.UnmarshalJSON(strings.NewReader(text))
	if err != nil {
		return err
	}
	return schema.Validate(value)
}

// escapePointer escapes a part of a JSON pointer.
var escapePointer = strings.NewReplacer("~", "~0", "/", "~1").Replace

// answerPointer returns the pointer to the schema of an answer.
func answerPointer(method, path string, status int) string {
	response, kind := "default", "application/problem+json"
	if status == http.StatusOK {
		response, kind = "200", "application/json"
	}
	return fmt.Sprintf("/paths/%s/%s/responses/%s/content/%s/schema", escapePointer(path), strings.ToLower(method), response, escapePointer(kind))
}

// readDescription reads the document that the page serves.
func (w *world) readDescription() *description {
	w.Helper()
	r, err := http.NewRequestWithContext(w.Context(), http.MethodGet, w.url+"/openapi.json", nil)
	if err != nil {
		w.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		w.Fatal(err)
	}
	defer resp.Body.Close()
	var text bytes.Buffer
	if _, err := io.Copy(&text, resp.Body); err != nil {
		w.Fatal(err)
	}
	d, err := newDescription(text.String())
	if err != nil {
		w.Fatal(err)
	}
	return d
}

// paths are those of the API.
var paths = map[string]string{
	"/api/v1/server": "get", "/api/v1/lines": "get", "/api/v1/line": "get", "/api/v1/history": "get", "/api/v1/events": "get",
	"/api/v1/leases": "get", "/api/v1/waits": "get", "/api/v1/blame": "get", "/api/v1/break": "post",
}

// checkAnswer checks an answer of the API against the document.
func (w *world) checkAnswer(method, path string, status int, text string) {
	w.Helper()
	path, _, _ = strings.Cut(path, "?")
	if paths[path] != strings.ToLower(method) {
		return
	}
	if err := w.description().check(answerPointer(method, path, status), text); err != nil {
		w.Errorf("%s %s: the answer is not as documented: %v\n%.2000s", method, path, err, text)
	}
}

// checkEvent checks the data of a server-sent event against the document.
func (w *world) checkEvent(ev event) {
	w.Helper()
	schema := map[string]string{"lines": "Changes", "status": "Status", "reset": "Reset"}[ev.name]
	if err := w.description().check("/components/schemas/"+schema, ev.data); err != nil {
		w.Errorf("event %s: not as documented: %v\n%.2000s", ev.name, err, ev.data)
	}
}

// The document is OpenAPI 3.1 and describes the whole API. Every answer in the other tests is checked
// against it.
func TestOpenAPI_describesTheAPI(t *testing.T) {
	t.Parallel()
	w := start(t, nil)
	_, _, text := w.request(http.MethodGet, "/openapi.json")
	var document struct {
		OpenAPI string
		Paths   map[string]map[string]struct {
			Summary    string
			Parameters []struct{ Name, Description string }
			Responses  map[string]any
		}
	}
	if err := json.Unmarshal([]byte(text), &document); err != nil {
		t.Fatal(err)
	}
	if document.OpenAPI != "3.1.0" {
		t.Errorf("got version %s, want 3.1.0", document.OpenAPI)
	}
	if got, want := slices.Sorted(maps.Keys(document.Paths)), slices.Sorted(maps.Keys(paths)); !slices.Equal(got, want) {
		t.Errorf("got paths %v, want %v", got, want)
	}
	for path, methods := range document.Paths {
		op, ok := methods[paths[path]]
		if len(methods) != 1 || !ok || op.Summary == "" || op.Responses["200"] == nil || op.Responses["default"] == nil {
			t.Errorf("%s: got %+v, want one method with a summary and its answers", path, methods)
		}
		for _, p := range op.Parameters {
			if p.Description == "" {
				t.Errorf("%s: the parameter %s is not described", path, p.Name)
			}
		}
	}
}

// The check of answers finds what is not documented.
func TestOpenAPI_checkIsStrict(t *testing.T) {
	t.Parallel()
	w := start(t, nil)
	w.lock(w.client("ann"), "a")
	w.awaitLines(1)
	_, _, text := w.request(http.MethodGet, "/api/v1/line?name=a")
	pointer := answerPointer(http.MethodGet, "/api/v1/line", http.StatusOK)
	if err := w.description().check(pointer, text); err != nil {
		t.Fatal(err)
	}
	for what, change := range map[string]*strings.Replacer{
		"another field":  strings.NewReplacer(`"name":`, `"other":1,"name":`),
		"a missing one":  strings.NewReplacer(`"key":"YQ"`, ``, `],"key"`, `]`),
		"a number token": regexpToken(text),
		"a bad time":     strings.NewReplacer(`"since":"2`, `"since":"x`),
		"a null":         strings.NewReplacer(`"waiters":[]`, `"waiters":null`),
	} {
		changed := strings.ReplaceAll(change.Replace(text), ",}", "}")
		if changed == text || w.description().check(pointer, changed) == nil {
			t.Errorf("%s is not found: %s", what, changed)
		}
	}
}

// regexpToken returns a replacer that turns the token into a number.
func regexpToken(text string) *strings.Replacer {
	m := regexp.MustCompile(`"token":"([0-9]+)"`).FindStringSubmatch(text)
	return strings.NewReplacer(m[0], `"token":`+m[1])
}

// All fields of an entry are documented, whatever the store knows about it.
func TestOpenAPI_allFieldsOfLines(t *testing.T) {
	t.Parallel()
	w := start(t, nil)
	full, err := stile.New(w.st, &stile.Options{TTL: ttl, Owner: stile.Owner{
		Host: "h", PID: 1, User: "u", Command: "c", Reason: "r", Labels: map[string]string{"k": "v"},
	}})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = full.Close(t.Context()) }()
	if err := full.Resize(t.Context(), "slots", 2); err != nil {
		t.Fatal(err)
	}
	if _, err := full.Semaphore("slots", 3).Acquire(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := full.RWMutex("shared").RLock(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.foreign("foreign\xff")
	eventually(t, "all fields", func() bool {
		_, _, text := w.request(http.MethodGet, "/api/v1/lines")
		for _, field := range []string{"host", "pid", "user", "command", "reason", "labels", "since", "obtained", "limit", "argument", "remaining_ns"} {
			if !strings.Contains(text, `"`+field+`":`) {
				return false
			}
		}
		return strings.Contains(text, `"slot/3"`) && strings.Contains(text, `"shared"`)
	})
}

// The line in the API is that of stile ls -o json, and the key.
func TestLine_isThatOfTheCommand(t *testing.T) {
	t.Parallel()
	w := start(t, nil)
	w.lock(w.client("ann"), "a")
	w.awaitLines(1)
	_, _, text := w.request(http.MethodGet, "/api/v1/line?name=a")
	var got page.Line
	if err := json.Unmarshal([]byte(text), &got); err != nil {
		t.Fatal(err)
	}
	own, err := json.Marshal(got.Line)
	if err != nil {
		t.Fatal(err)
	}
	if want := strings.TrimSuffix(string(own), "}") + `,"key":"YQ"}` + "\n"; text != want {
		t.Errorf("got\n%swant\n%s", text, want)
	}
}

// The examples in the documentation are answers of the API.
func TestOpenAPI_examplesInTheDocumentation(t *testing.T) {
	t.Parallel()
	w := start(t, nil)
	text, err := os.ReadFile(filepath.Join("..", "..", "..", "..", "docs", "operations.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, section, ok := strings.Cut(string(text), "\n## Reading the API\n")
	if !ok {
		t.Fatal("docs/operations.md has no section Reading the API")
	}
	section, _, _ = strings.Cut(section, "\n## ")
	shown := map[string]bool{}
	for _, m := range regexp.MustCompile("(?s)```\n(GET|POST) (/[^ \n?]+)[^\n]*\n\n(.*?)\n```").FindAllStringSubmatch(section, -1) {
		method, path, answer := m[1], m[2], m[3]
		shown[path] = true
		if path == "/api/v1/events" {
			for example := range strings.SplitSeq(answer, "\n\n") {
				var ev event
				for line := range strings.Lines(example) {
					field, value, _ := strings.Cut(strings.TrimSpace(line), ": ")
					switch field {
					case "event":
						ev.name = value
					case "data":
						ev.data = value
					}
				}
				w.checkEvent(ev)
			}
			continue
		}
		w.checkAnswer(method, path, http.StatusOK, answer)
	}
	for path := range paths {
		if !strings.Contains(section, path) {
			t.Errorf("%s is not described", path)
		}
	}
	for _, path := range []string{"/api/v1/lines", "/api/v1/events"} {
		if !shown[path] {
			t.Errorf("the section shows no answer to %s", path)
		}
	}
}

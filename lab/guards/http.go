package guards

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/stilelock/stile/guard"
	"github.com/stilelock/stile/guard/fileguard"
	"github.com/stilelock/stile/guard/httpguard"
)

// Serve serves the journals of httpguard until ctx ends. The fences are files in dir.
func Serve(ctx context.Context, listener net.Listener, dir string) error {
	var mu sync.Mutex
	journals := map[string]string{}
	add := http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		journals[r.PathValue("name")] += r.FormValue("token") + " "
	})
	g := &httpguard.Guard{
		Tokens: fileguard.Tokens{Dir: dir},
		Lock:   func(r *http.Request) string { return r.PathValue("name") },
	}
	mux := http.NewServeMux()
	mux.Handle("POST /guarded/{name}", g.Wrap(add))
	mux.Handle("POST /plain/{name}", add)
	mux.HandleFunc("GET /{name}", func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		_, _ = io.WriteString(w, journals[r.PathValue("name")])
	})
	return serve(ctx, listener, mux)
}

// serve serves until ctx ends.
func serve(ctx context.Context, listener net.Listener, handler http.Handler) error {
	server := &http.Server{Handler: handler, ReadHeaderTimeout: time.Minute}
	defer context.AfterFunc(ctx, func() { _ = server.Close() })()
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// httpJournal is a journal of a server.
type httpJournal struct {
	client    *http.Client
	url, name string
}

func openHTTP(_ context.Context, s Servers, name string) (Journal, error) {
	return &httpJournal{&http.Client{Transport: &http.Transport{}}, "http://" + s.HTTP, name}, nil
}

func (j *httpJournal) Append(ctx context.Context, hold guard.Hold) error {
	return j.post(ctx, "/guarded/", hold.Token())
}

func (j *httpJournal) AppendPlain(ctx context.Context, token uint64) error {
	return j.post(ctx, "/plain/", token)
}

func (j *httpJournal) post(ctx context.Context, path string, token uint64) error {
	form := url.Values{"token": {fmt.Sprint(token)}}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, j.url+path+j.name, strings.NewReader(form.Encode()))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	httpguard.SetHeaders(req.Header, j.name, token)
	_, err = j.do(req)
	return err
}

func (j *httpJournal) do(req *http.Request) (body string, err error) {
	resp, err := j.client.Do(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	if err := httpguard.CheckResponse(resp); err != nil {
		return "", err
	}
	b, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", resp.Status, b)
	}
	return string(b), err
}

func (j *httpJournal) Tokens(ctx context.Context) ([]uint64, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, j.url+"/"+j.name, http.NoBody)
	if err != nil {
		return nil, err
	}
	text, err := j.do(req)
	if err != nil {
		return nil, err
	}
	return parseTokens(text)
}

func (j *httpJournal) Close() error {
	j.client.CloseIdleConnections()
	return nil
}

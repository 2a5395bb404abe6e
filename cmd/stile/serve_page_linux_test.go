package main_test

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/stilelock/stile/cmd/stile/internal/node/testcert"
	"github.com/stilelock/stile/internal/testservers"
)

const pageToken = "s3cret-token-of-the-page"

// pageAnswer gets an answer of the page's API, with a token if it is not empty.
func pageAnswer(t *testing.T, url, token string) (status int, body string) {
	t.Helper()
	return pageAnswerWith(t, http.DefaultClient, url, token)
}

func pageAnswerWith(t *testing.T, client *http.Client, url, token string) (status int, body string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	if token != "" {
		r.Header.Set("Authorization", "Bearer "+token)
	}
	resp, err := client.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	return readResponse(t, resp)
}

// expectOnPage waits until the page shows a lock with one holder.
func expectOnPage(t *testing.T, page, token, name string) {
	t.Helper()
	eventually(t, "lock "+name+" on the page", func() bool {
		status, body := pageAnswer(t, page+"/api/v1/line?name="+name, token)
		var line struct{ Holders []any }
		if status != http.StatusOK {
			t.Fatalf("got status %d: %s", status, body)
		}
		if err := json.Unmarshal([]byte(body), &line); err != nil {
			t.Fatalf("%v: %s", err, body)
		}
		return len(line.Holders) == 1
	})
}

// The page of an existing store, without an etcd of its own.
func TestServe_pageOfRedis(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	redis := testservers.StartRedis(t, "requirepass hunter2")
	tokens := m.write("tokens", "read "+pageToken+"\n", 0o600)
	url := "redis://:hunter2@" + redis.Addr()
	m.command("serve", "--url", url, "--page", "127.0.0.1:0").spawn().expectExit(125, "--page-tokens")
	s := m.serve("--url", url, "--page", "127.0.0.1:0", "--page-tokens", tokens)
	page := s.readyValue("page")
	if want := "redis://:***@" + redis.Addr(); s.readyValue("store") != want {
		t.Errorf("got the store %s in the log, want %s", s.readyValue("store"), want)
	}
	m.setenv("STILE_URL", url)
	holder := m.start(endableScript, "demo")
	if status, body := pageAnswer(t, page+"/api/v1/lines", ""); status != http.StatusUnauthorized {
		t.Errorf("without a token: got status %d: %s", status, body)
	}
	expectOnPage(t, page, pageToken, "demo")
	status, body := pageAnswer(t, page+"/api/v1/server", pageToken)
	if status != http.StatusOK || strings.Contains(body, "hunter2") || !strings.Contains(body, "redis://:***@") {
		t.Errorf("server: got status %d and %s", status, body)
	}
	m.endScript()
	holder.expectExit(0)

	// A reader of events does not keep it from ending.
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, page+"/api/v1/events", nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+pageToken)
	events, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer events.Body.Close()
	if _, err := io.ReadFull(events.Body, make([]byte, 10)); err != nil {
		t.Fatal(err)
	}
	s.signal(syscall.SIGTERM)
	if code := s.exitCode(); code != 0 {
		t.Errorf("got exit code %d after SIGTERM: %s", code, s.log)
	}
	if log := s.log.String(); strings.Contains(log, "hunter2") || strings.Contains(log, pageToken) {
		t.Errorf("a secret is in the log: %s", log)
	}
	if m.exists("state") {
		t.Error("a data directory was created")
	}
}

// The page beside the server's etcd, with its flags in a file.
func TestServe_pageBesideEtcd(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	config := m.write("stile.yaml", "class:\n  dem*: demos\nlisten: 127.0.0.1:0\npage: 127.0.0.1:0\npage-socket: "+m.path("page.sock")+"\ndata: "+m.path("data")+"\n", 0o600)
	s := m.serve("--config-file", config)
	m.setenv("STILE_URL", s.readyValue("url"))
	holder := m.start(endableScript, "demo")
	expectOnPage(t, s.readyValue("page"), "", "demo")
	if _, body := pageAnswer(t, s.readyValue("page")+"/metrics", ""); !strings.Contains(body, `stile_lock_names{class="demos",state="held"} 1`) {
		t.Errorf("metrics: got %s", body)
	}
	if got := s.readyValue("page_socket"); got != m.path("page.sock") {
		t.Errorf("got the socket %s", got)
	}
	m.endScript()
	holder.expectExit(0)
	s.signal(syscall.SIGTERM)
	if code := s.exitCode(); code != 0 || m.exists("page.sock") {
		t.Errorf("got exit code %d after SIGTERM, socket left: %v: %s", code, m.exists("page.sock"), s.log)
	}
}

// A page at a socket needs no tokens if the store is at a socket too: directories decide who may use either.
func TestServe_pageAndStoreAtSockets(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	s := m.serve("--socket", m.path("store.sock"), "--page-socket", m.path("page.sock"), "--data", m.path("data"))
	if got := s.readyValue("page_socket"); got != m.path("page.sock") {
		t.Errorf("got the socket %s", got)
	}
}

// With TLS and users the page has the server's certificate and needs tokens.
func TestServe_pageWithTLSAndUsers(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	ca := testcert.NewAuthority(t)
	cert := ca.Issue("server", testcert.Spec{Hosts: []string{"127.0.0.1"}})
	password := m.write("root-password", rootPassword+"\n", 0o600)
	flags := []string{
		"--listen", "127.0.0.1:0", "--data", m.path("data"), "--tls-cert", cert.Cert, "--tls-key", cert.Key,
		"--root-password-file", password, "--page", "0.0.0.0:0",
	}
	m.command(append([]string{"serve"}, flags...)...).spawn().expectExit(125, "--page-tokens")
	s := m.serve(append(flags, "--page-tokens", m.write("tokens", "read "+pageToken, 0o600))...)
	text, err := os.ReadFile(ca.File)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(text)
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}}}
	defer client.CloseIdleConnections()
	_, port, _ := strings.Cut(strings.TrimPrefix(s.readyValue("page"), "https://"), ":")
	page := "https://127.0.0.1:" + port
	if status, body := pageAnswerWith(t, client, page+"/api/v1/lines", ""); status != http.StatusUnauthorized {
		t.Errorf("without a token: got status %d: %s", status, body)
	}
	eventually(t, "the page has read the lines", func() bool {
		status, body := pageAnswerWith(t, client, page+"/api/v1/lines", pageToken)
		if status != http.StatusOK || !strings.Contains(body, `"error":""`) {
			t.Fatalf("with a token: got status %d: %s", status, body)
		}
		return strings.Contains(body, `"read":true`)
	})
	s.signal(syscall.SIGTERM)
	s.exitCode()
	if log := s.log.String(); strings.Contains(log, rootPassword) || strings.Contains(log, pageToken) || strings.Contains(log, "login failed") {
		t.Errorf("a secret or a failed login is in the log: %s", log)
	}

	// Without the password the page could not log in.
	m.command("serve", "--listen", "127.0.0.1:0", "--data", m.path("data"), "--page", "127.0.0.1:0").spawn().
		expectExit(125, "the page cannot log in", "--root-password-file")
}

func TestServe_pageMistakes(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	serve := func(args ...string) *command {
		return m.command(append([]string{"serve", "--data", m.path("data")}, args...)...).spawn()
	}
	page := func(args ...string) *command {
		return m.command(append([]string{"serve", "--url", "mem:"}, args...)...).spawn()
	}
	s := m.serve("--url", "mem:", "--page", "127.0.0.1:0")
	used := strings.TrimPrefix(s.readyValue("page"), "http://")
	serve("--listen", "127.0.0.1:0", "--page", used).expectExit(125, "--page", "cannot listen at "+used, "in use")
	serve("--listen", "127.0.0.1:0", "--page", "0.0.0.0:0").expectExit(125, "--page", "without TLS")
	serve("--listen", "127.0.0.1:0", "--page", "nonsense").expectExit(125, "--page", "host:port")
	serve("--listen", "127.0.0.1:0", "--page-tokens", m.path("tokens")).expectExit(125, "--page-tokens", "no such file")
	serve("--listen", "127.0.0.1:0", "--allow-break").expectExit(125, "--allow-break", "name its address with --page")
	serve("--listen", "127.0.0.1:0", "--page", "127.0.0.1:0", "--allow-break").expectExit(125, "--allow-break needs --page-tokens")
	serve("--listen", "127.0.0.1:0", "--page-socket", m.write("file", "", 0o600)).expectExit(125, "--page-socket", "not a socket")
	page("--listen", "127.0.0.1:0").expectExit(125, "--listen is for a server of its own")
	page("--config-file", m.write("c.yaml", "health: 127.0.0.1:0", 0o600)).expectExit(125, "--health is for a server of its own")
	m.command("serve", "--url", "redis://127.0.0.1:1", "--page", "127.0.0.1:0").spawn().expectExit(125, "redis", "127.0.0.1:1")
	m.command("serve", "--url", "nonsense", "--page", "127.0.0.1:0").spawn().expectExit(125, "nonsense")
	// Other users of the machine may not be able to connect to these stores, but to the page.
	serve("--socket", m.path("s"), "--page", "127.0.0.1:0").expectExit(125, "the page needs --page-tokens", "only some users")
	for _, url := range []string{"local:", "etcd+unix:///run/other.sock", "redis+unix:///run/redis.sock"} {
		m.command("serve", "--url", url, "--page", "127.0.0.1:0").spawn().expectExit(125, "the page needs --page-tokens", "only some users")
	}
	if m.exists("data") {
		t.Error("the data directory was created in spite of a mistake")
	}
	if got := fmt.Sprint(s.log); strings.Contains(got, "ERROR") || !strings.Contains(got, "mem: is private to this process") {
		t.Errorf("got the log %s, want a warning that the page of mem: shows no locks of others", got)
	}
}

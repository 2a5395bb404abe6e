package page_test

import (
	"log/slog"
	"net/http"
	"testing"

	"github.com/stilelock/stile/cmd/stile/internal/node"
	"github.com/stilelock/stile/cmd/stile/internal/page"
	"github.com/stilelock/stile/internal/testservers"
	"github.com/stilelock/stile/store"
	"github.com/stilelock/stile/store/etcdstore"
	"github.com/stilelock/stile/storeurl"
)

// The page shows the etcd in its own process. With users, it logs in as root.
func TestStores_embeddedEtcd(t *testing.T) {
	t.Parallel()
	for name, password := range map[string]string{"open": "", "users": "correct horse battery staple"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n, err := node.Start(t.Context(), node.Config{
				Dir: t.TempDir(), Listen: "127.0.0.1:0", RootPassword: password, Logger: slog.New(slog.DiscardHandler),
			})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(n.Close)
			if got := n.UsersRequired(); got != (password != "") {
				t.Errorf("users required: got %v", got)
			}
			etcd, err := n.Client()
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = etcd.Close() })
			st, err := etcdstore.New(etcd, nil)
			if err != nil {
				t.Fatal(err)
			}
			// The churn opens many streams, and with users etcd checks the password, slowly, for each of them.
			showsStore(t, st, password == "")
		})
	}
}

func TestStores_redis(t *testing.T) {
	t.Parallel()
	redis := testservers.StartRedis(t)
	opened, err := testservers.Retry(func() (*storeurl.Conn, error) { return storeurl.Open(t.Context(), "redis://"+redis.Addr(), nil) })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = opened.Close() })
	showsStore(t, opened.Store, true)
}

func showsStore(t *testing.T, st store.Store, churn bool) {
	t.Helper()
	w := startOn(t, st, func(c *page.Config) { c.Tokens, c.AllowBreak = tokens(t), true })
	w.token = breakToken
	ann := w.client("ann")
	if churn {
		resumeUnderChurn(t, w, 100)
	} else {
		w.lock(ann, "stays")
	}
	h := w.lock(ann, "broken")
	w.awaitLines(2)
	if status, _, text := w.request(http.MethodPost, "/api/v1/break", body(breakBody("broken", h.Token()))); status != http.StatusOK {
		t.Errorf("break: got status %d: %s", status, text)
	}
	<-h.Lost()
	w.awaitLines(1)
	if status, _, text := w.request(http.MethodGet, "/api/v1/waits"); status != http.StatusOK {
		t.Errorf("waits: got status %d: %s", status, text)
	}
	if status, _, text := w.request(http.MethodGet, "/api/v1/blame"); status != http.StatusOK {
		t.Errorf("blame: got status %d: %s", status, text)
	}
}

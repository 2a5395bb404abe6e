package node

import (
	"encoding/json"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"go.etcd.io/etcd/client/pkg/v3/types"
	"go.etcd.io/etcd/server/v3/etcdserver/api/membership"
	"go.uber.org/zap"
)

// etcd itself waits a second for an answer. A member that does not detect the loss of its data in
// that time would start without it and break its promises.
func TestRejoin_slowAnswer(t *testing.T) {
	t.Parallel()
	const own = "http://127.0.0.1:1"
	var (
		cluster *membership.RaftCluster
		members []*membership.Member
	)
	other := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		time.Sleep(2 * time.Second)
		w.Header().Set("X-Etcd-Cluster-Id", cluster.ID().String())
		_ = json.NewEncoder(w).Encode(members)
	}))
	defer other.Close()
	cfg := Config{
		Dir: t.TempDir(), Listen: "127.0.0.1:0", Logger: slog.New(slog.DiscardHandler),
		Cluster: Cluster{Name: "a", Peers: map[string]string{"a": own, "b": other.URL}},
	}
	e, err := cfg.etcd()
	if err != nil {
		t.Fatal(err)
	}
	urls, err := types.NewURLsMap(e.InitialCluster)
	if err != nil {
		t.Fatal(err)
	}
	if cluster, err = membership.NewClusterFromURLsMap(zap.NewNop(), e.InitialClusterToken, urls); err != nil {
		t.Fatal(err)
	}
	members = cluster.Members()
	o, err := newPeerClient(cfg.Cluster, e)
	if err != nil {
		t.Fatal(err)
	}
	if err := cfg.rejoin(t.Context(), o, e); err != nil {
		t.Errorf("known to the others, but never started: got %v, want no error", err)
	}
	for _, m := range members {
		if m.Name == "a" {
			m.ClientURLs = []string{own}
		}
	}
	if err := cfg.rejoin(t.Context(), o, e); err == nil || !strings.Contains(err.Error(), "member a has lost its data") {
		t.Errorf("known to the others with data: got %v, want an error about lost data", err)
	}
}

package zkstore_test

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"io"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/stilelock/stile/internal/testservers"
	"github.com/stilelock/stile/store"
	"github.com/stilelock/stile/store/zkstore"
)

// examinedTTL is the TTL for which the tests examine servers.
const examinedTTL = 15 * time.Second

// toExamine returns a store on the servers that has more patience than others, for busy machines.
func toExamine(t *testing.T, opts *zkstore.Options, servers ...string) *zkstore.Store {
	t.Helper()
	st, err := zkstore.New(servers, opts)
	if err != nil {
		t.Fatal(err)
	}
	st.SetPatience(testTimeout, noRecheck)
	t.Cleanup(func() { _ = st.Close() })
	return st
}

// examined returns the findings about a store.
func examined(t *testing.T, st *zkstore.Store) []store.Finding {
	t.Helper()
	found, err := st.Examine(t.Context(), examinedTTL)
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// expectFinding checks that there is exactly one finding with this id, with this severity and text.
func expectFinding(t *testing.T, found []store.Finding, id string, severity store.Severity, text string) {
	t.Helper()
	var with []store.Finding
	for _, f := range found {
		if f.ID == id {
			with = append(with, f)
		}
	}
	if len(with) != 1 || with[0].Severity != severity || !strings.Contains(with[0].What, text) {
		t.Errorf("got %+v for %s, want one finding that is %v and contains %q: %+v", with, id, severity, text, found)
		return
	}
	if f := with[0]; (f.Advice == "") != (severity == store.Fine) || severity == store.Risk && f.Promise == "" {
		t.Errorf("finding without advice or promise: %+v", f)
	}
}

// A server without problems but its version, which has a known bug. The rule is tested below.
func TestExamine_fine(t *testing.T) {
	t.Parallel()
	z := server(t)
	found := examined(t, toExamine(t, nil, z.Endpoint()))
	for id, text := range map[string]string{
		"zk-words": "permits", "zk-ensemble": "one ensemble", "zk-quorum": "one server", "zk-leader": "rare", "zk-ttl": "grant a TTL of 15s",
		"zk-tick": "four ticks of 100ms", "zk-rights": "may read, create and delete nodes in /", "zk-maxbuffer": "large enough",
	} {
		expectFinding(t, found, id, store.Fine, text)
	}
	if srvr, err := z.Say("srvr"); err == nil && strings.Contains(srvr, "version: 3.8.0") {
		expectFinding(t, found, "zk-version", store.Risk, "ZOOKEEPER-4785")
	}
	children, _, err := connect(t, z.Endpoint()).Children("/")
	if err != nil || slices.ContainsFunc(children, func(c string) bool { return strings.HasPrefix(c, "stile-doctor") }) {
		t.Errorf("the examination has left a node: %v, %v", children, err)
	}
}

// Only one version can be had here, so the rule is tested by itself.
func TestExamine_versions(t *testing.T) {
	for version, want := range map[string]string{
		"3.4.10-1, built on x": "older than 3.5.3", "3.5.3": "ZOOKEEPER-2355", "3.5.9": "ZOOKEEPER-3145", "3.7.2": "ZOOKEEPER-4785",
		"3.8.3": "ZOOKEEPER-4785", "3.9.1": "ZOOKEEPER-4785", "3.8.4": "", "3.9.2": "", "3.10.0": "",
	} {
		got := zkstore.JudgeVersion(version)
		if (got.Severity == store.Risk) != (want != "") || !strings.Contains(got.What, want) {
			t.Errorf("%s: got %+v, want %q", version, got, want)
		}
	}
}

// By default servers answer only srvr. The tick is then guessed from the smallest TTL that they grant.
func TestExamine_ticks(t *testing.T) {
	t.Parallel()
	z := testservers.StartZooKeeper(t, "4lw.commands.whitelist=srvr", "tickTime=4000", "minSessionTimeout=8000", "maxSessionTimeout=80000")
	found := examined(t, toExamine(t, nil, z.Endpoint()))
	expectFinding(t, found, "zk-words", store.Attention, "does not permit the four-letter words conf and mntr")
	expectFinding(t, found, "zk-tick", store.Risk, "less than four ticks of 4s")
	expectFinding(t, found, "zk-ttl", store.Fine, "15s")
}

func TestExamine_words(t *testing.T) {
	t.Parallel()
	// The tests wait for srvr, so the server permits it.
	z := testservers.StartZooKeeper(t, "4lw.commands.whitelist=srvr,conf", "maxSessionTimeout=10000")
	found := examined(t, toExamine(t, nil, z.Endpoint()))
	expectFinding(t, found, "zk-words", store.Attention, "conf and mntr")
	expectFinding(t, found, "zk-ttl", store.Attention, "a TTL of 10s at most")
}

// A word without an answer is not a word that the server refuses.
func TestExamine_unansweredWord(t *testing.T) {
	t.Parallel()
	for word, want := range map[string]string{
		"conf": "so its tick was guessed", "mntr": "so its disk and its elections were not examined",
	} {
		found := examined(t, toExamine(t, nil, resetsWord(t, word, server(t).Endpoint())))
		expectFinding(t, found, "zk-words", store.Attention, "has answered srvr, but not "+word+" (")
		expectFinding(t, found, "zk-words", store.Attention, want)
	}
}

// resetsWord returns the address of a proxy of a server. It resets connections that begin with the word.
func resetsWord(t *testing.T, word, server string) string {
	t.Helper()
	l, err := net.Listen("tcp", testservers.FreeAddress(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return // the test is over
			}
			go func() {
				defer conn.Close()
				start := make([]byte, len(word))
				if _, err := io.ReadFull(conn, start); err != nil || string(start) == word {
					_ = conn.(*net.TCPConn).SetLinger(0)
					return
				}
				behind, err := net.Dial("tcp", server)
				if err != nil {
					return
				}
				defer behind.Close()
				go func() { _, _ = io.Copy(behind, io.MultiReader(bytes.NewReader(start), conn)) }()
				_, _ = io.Copy(conn, behind)
			}()
		}
	}()
	return l.Addr().String()
}

func TestExamine_minimalTTL(t *testing.T) {
	t.Parallel()
	z := testservers.StartZooKeeper(t, "minSessionTimeout=20000")
	expectFinding(t, examined(t, toExamine(t, nil, z.Endpoint())), "zk-ttl", store.Attention, "a TTL of 20s at least")
}

// The real disk is not slow, so the limit is low. The average is in whole milliseconds, and may be 0.
func TestExamine_fsync(t *testing.T) {
	t.Parallel()
	z := testservers.StartZooKeeper(t, "forceSync=yes")
	st := toExamine(t, nil, z.Endpoint())
	st.SetExamineLimits(-1, 1)
	if _, err := connect(t, z.Endpoint()).Create("/x", nil, 0, zk.WorldACL(zk.PermAll)); err != nil {
		t.Fatal(err)
	}
	expectFinding(t, examined(t, st), "zk-fsync", store.Attention, "a write to disk takes")
	st.SetExamineLimits(time.Hour, 1)
	expectFinding(t, examined(t, st), "zk-fsync", store.Fine, "less than 1h")
}

// Elections are rare, so the limit is low.
func TestExamine_ensemble(t *testing.T) {
	t.Parallel()
	e := testservers.StartZooKeeperEnsemble(t, 3, "initLimit=240", "syncLimit=240")
	st := toExamine(t, nil, e.Endpoints()...)
	found := examined(t, st)
	expectFinding(t, found, "zk-ensemble", store.Fine, "one ensemble")
	expectFinding(t, found, "zk-quorum", store.Fine, "all 3 servers answer; 1 may fail")
	expectFinding(t, examined(t, toExamine(t, nil, e.Endpoints()[0])), "zk-quorum", store.Attention, "only one server of an ensemble")
	expectFinding(t, examined(t, toExamine(t, nil, e.Endpoints()[:2]...)), "zk-quorum", store.Attention, "2 servers tolerate")

	st.SetExamineLimits(time.Hour, 1)
	if found = examined(t, st); !slices.ContainsFunc(found, func(f store.Finding) bool {
		return f.ID == "zk-leader" && f.Severity == store.Attention && strings.Contains(f.What, "elections in the")
	}) {
		t.Errorf("no finding about elections: %+v", found)
	}

	down := e.Followers(t)[0]
	down.Kill()
	found = examined(t, toExamine(t, nil, e.Endpoints()...))
	expectFinding(t, found, "zk-quorum", store.Attention, "1 of the 3 servers of the URL do not answer; if 1 more fail")
	expectFinding(t, found, "zk-answer", store.Attention, "does not answer")
}

// Servers that know nothing of each other.
func TestExamine_notOneEnsemble(t *testing.T) {
	t.Parallel()
	a, b := server(t), testservers.StartZooKeeper(t)
	expectFinding(t, examined(t, toExamine(t, nil, a.Endpoint(), b.Endpoint())), "zk-ensemble", store.Risk, "standalone: 2")
}

func TestExamine_roundTrip(t *testing.T) {
	t.Parallel()
	proxy := testservers.NewProxy(t, server(t).Endpoint())
	proxy.Delay(300 * time.Millisecond)
	found, err := toExamine(t, nil, proxy.Addr()).Examine(t.Context(), 5*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	expectFinding(t, found, "zk-round-trip", store.Attention, "more than a tenth of the TTL")
}

// Each right that is missing is found, also where the root does not exist yet.
func TestExamine_rights(t *testing.T) {
	t.Parallel()
	z := server(t)
	conn := connect(t, z.Endpoint())
	for name, c := range map[string]struct {
		perms int32
		want  string
	}{
		"all":        {zk.PermAll, ""},
		"no read":    {zk.PermAll &^ zk.PermRead, "may not read nodes"},
		"no create":  {zk.PermAll &^ zk.PermCreate, "may not create nodes"},
		"no delete":  {zk.PermAll &^ zk.PermDelete, "may not delete nodes"},
		"only admin": {zk.PermAdmin, "may not read or create nodes"},
	} {
		t.Run(name, func(t *testing.T) {
			root := "/" + strings.NewReplacer("/", "-", " ", "-").Replace(newName(t))
			if _, err := conn.Create(root, nil, 0, zk.WorldACL(c.perms)); err != nil {
				t.Fatal(err)
			}
			for _, path := range []string{root, root + "/a/b"} {
				found := examined(t, toExamine(t, &zkstore.Options{Root: path}, z.Endpoint()))
				if c.want == "" {
					expectFinding(t, found, "zk-rights", store.Fine, "in "+root)
				} else {
					expectFinding(t, found, "zk-rights", store.Attention, c.want)
				}
			}
		})
	}
}

// A server whose jute.maxbuffer is below what a request of Stile may have. It is set for the whole process of
// the test, so the test does not run beside others.
func TestExamine_maxBuffer(t *testing.T) {
	t.Setenv("JAVA_TOOL_OPTIONS", "-Djute.maxbuffer=100000")
	z := testservers.StartZooKeeper(t)
	expectFinding(t, examined(t, toExamine(t, nil, z.Endpoint())), "zk-maxbuffer", store.Attention, "jute.maxbuffer is smaller")
}

func TestExamine_tls(t *testing.T) {
	t.Parallel()
	s := restricted(t)
	trusted := x509.NewCertPool()
	trusted.AddCert(s.certificate)
	opts := optionsWith(ann)
	opts.TLS = &tls.Config{RootCAs: trusted}
	await(t, "the server listens for TLS, which it does last", func() bool {
		conn, err := net.Dial("tcp", s.tlsAddress)
		if err != nil {
			return false
		}
		_ = conn.Close()
		return true
	})
	st := toExamine(t, opts, s.tlsAddress)
	var found []store.Finding
	// A server drops a connection whose handshake takes ten seconds, as it may on a busy machine.
	await(t, "answers to all words", func() bool {
		found = examined(t, st)
		return !slices.ContainsFunc(found, func(f store.Finding) bool {
			return f.Severity != store.Fine && strings.Contains(f.What, "answer")
		})
	})
	expectFinding(t, found, "zk-words", store.Fine, "permits")
	expectFinding(t, found, "zk-rights", store.Fine, "may read, create and delete")
}

//go:build linux

package site

import (
	"net"
	"os"
	"slices"
	"strings"
	"testing"
)

// testSite is the site of the tests. It is nil if the machine cannot provide one, for the reason
// errSite.
var (
	testSite *Site
	errSite  error
)

// checkAvailable skips a test if err is not nil, because the machine cannot run the test. If
// STILE_TEST_REQUIRE contains "all", the test fails instead.
func checkAvailable(t *testing.T, err error) {
	t.Helper()
	switch {
	case err == nil:
	case slices.Contains(strings.Split(os.Getenv("STILE_TEST_REQUIRE"), ","), "all"):
		t.Fatalf("STILE_TEST_REQUIRE=all forbids skipping this test: %v", err)
	default:
		t.Skipf("SKIPPED, NOT TESTED: %v", err)
	}
}

// newNetwork creates a network that is closed after the test.
func newNetwork(t *testing.T) *Network {
	t.Helper()
	checkAvailable(t, errSite)
	n, err := testSite.Network()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := n.Close(); err != nil {
			t.Error(err)
		}
	})
	return n
}

func newNode(t *testing.T, n *Network, name string) *Node {
	t.Helper()
	node, err := n.Node(name)
	if err != nil {
		t.Fatal(err)
	}
	return node
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestEnter_privateNetworkAndFiles(t *testing.T) {
	checkAvailable(t, errSite)
	links, err := net.Interfaces()
	must(t, err)
	if len(links) != 1 || links[0].Name != "lo" || links[0].Flags&net.FlagUp == 0 {
		t.Errorf("got links %v, want only a loopback that is up", links)
	}
	mounts, err := os.ReadFile("/proc/self/mounts")
	must(t, err)
	if !strings.Contains(string(mounts), "stile-torture "+testSite.Dir()+" tmpfs ") {
		t.Errorf("no tmpfs is mounted at %s:\n%s", testSite.Dir(), mounts)
	}
	if os.Getenv(outsideVar) != "" {
		t.Errorf("%s is set, so children would believe that they are inside", outsideVar)
	}
}

//go:build linux

package site

import (
	"net"
	"os"
	"slices"
	"strings"
	"testing"
)

// here is the site that the tests run in; nil if the machine has none for us, for the reason why.
var (
	here *Site
	why  error
)

// need ends a test that the machine cannot run: it fails if STILE_TEST_REQUIRE has the word "all", else it is skipped.
func need(t *testing.T, err error) {
	t.Helper()
	switch {
	case err == nil:
	case slices.Contains(strings.Split(os.Getenv("STILE_TEST_REQUIRE"), ","), "all"):
		t.Fatalf("STILE_TEST_REQUIRE=all forbids skipping this test: %v", err)
	default:
		t.Skipf("SKIPPED, NOT TESTED: %v", err)
	}
}

// newNetwork returns a network that ends with the test.
func newNetwork(t *testing.T) *Network {
	t.Helper()
	need(t, why)
	n, err := here.Network()
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

func TestTheSiteHasANetworkAndFilesOfItsOwn(t *testing.T) {
	need(t, why)
	links, err := net.Interfaces()
	must(t, err)
	if len(links) != 1 || links[0].Name != "lo" || links[0].Flags&net.FlagUp == 0 {
		t.Errorf("there are %v, want a loopback that is up, and nothing else", links)
	}
	mounts, err := os.ReadFile("/proc/self/mounts")
	must(t, err)
	if !strings.Contains(string(mounts), "stile-torture "+here.Dir()+" tmpfs ") {
		t.Errorf("no memory is mounted at %s:\n%s", here.Dir(), mounts)
	}
	if os.Getenv(marker) != "" {
		t.Errorf("children would believe that they are inside: %s is set", marker)
	}
}

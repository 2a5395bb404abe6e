package zkstore

import (
	"strings"
	"testing"

	"github.com/stilelock/stile/store"
)

func TestPaths_dir(t *testing.T) {
	for _, tt := range []struct{ root, name, dir string }{
		{"", "a", "/a"},
		{"", "orders/42", "/orders/42"},
		{"/team", "orders/42", "/team/orders/42"},
		{"", "a b%2F+ä日", "/a b%2F+ä日"},
		{"", "a~b", "/a~7Eb"},
		{"", "🔒", "/~F0~9F~94~92"}, // two UTF-16 characters, and the server allows neither
		{"", "\ue000x", "/~EE~80~80x"},
		{"", "lock-0000000001", "/lock-~30000000001"},
		{"", "a/x__READ__0000000012", "/a/x__READ__~30000000012"},
		{"", "a/lock--2147483648", "/a/lock-~2D2147483648"},
		{"", "lock-1", "/lock-1"},
		{"", "zookeeper", "/~7Aookeeper"},
		{"", "zookeeper/x", "/~7Aookeeper/x"},
		{"", "a/zookeeper", "/a/zookeeper"},
		{"/team", "zookeeper", "/team/zookeeper"},
		{"", "...", "/..."},
		{"", "a\nb", "/a~0Ab"},
	} {
		p := paths{root: tt.root}
		if got := p.dir(tt.name); got != tt.dir {
			t.Errorf("root %q: directory of %q: got %q, want %q", tt.root, tt.name, got, tt.dir)
		}
		if got, ok := p.nameOf(tt.dir); !ok || got != tt.name {
			t.Errorf("root %q: name of %q: got %q, %v, want %q", tt.root, tt.dir, got, ok, tt.name)
		}
	}
	if got := (paths{}).dir("a\xff"); got != "/a~FF" { // no lock has that name, but it may be read
		t.Errorf("directory of a name that is not UTF-8: got %q, want /a~FF", got)
	}
	for _, dir := range []string{"/~", "/~4", "/~41", "/~zz", "/~7e", "/zookeeper", "/~FF", "/lock-0000000001"} {
		if name, ok := (paths{}).nameOf(dir); ok {
			t.Errorf("name of directory %q: got %q, want none", dir, name)
		}
	}
}

// nameOf walks from the root to a directory, as a listing does.
func (p paths) nameOf(dir string) (name string, ok bool) {
	for child := range strings.SplitSeq(strings.TrimPrefix(strings.TrimPrefix(dir, p.root), "/"), "/") {
		if name, ok = p.nameBelow(name, child); !ok {
			return "", false
		}
	}
	return name, true
}

func FuzzPaths_dir(f *testing.F) {
	for _, name := range []string{"a", "a/b", "~", "lock-0000000001", "zookeeper", "ä/日/🔒", "\ufff0", "__WRIT__00000000000", "-1"} {
		f.Add(name)
	}
	f.Fuzz(func(t *testing.T, name string) {
		if store.CheckName(name) != nil {
			t.Skip()
		}
		for _, p := range []paths{{}, {root: "/team"}} {
			dir := p.dir(name)
			if got, ok := p.nameOf(dir); !ok || got != name {
				t.Fatalf("%q has the directory %q, whose name is %q (%v)", name, dir, got, ok)
			}
			for part := range strings.SplitSeq(strings.TrimPrefix(dir, "/"), "/") {
				if _, entry := parseNode(part); entry || part == "" || part == "." || part == ".." {
					t.Fatalf("%q has the directory %q, where %q cannot be a directory", name, dir, part)
				}
			}
			if strings.ContainsFunc(dir, func(r rune) bool { return r != escape && !allowed(r) }) {
				t.Fatalf("%q has the directory %q, which ZooKeeper does not allow", name, dir)
			}
		}
	})
}

// A path that ends in watchMark would be read as its parent.
// Bug: madelson/DistributedLock
func TestPaths_neverEndInWatchMark(t *testing.T) {
	if _, err := New([]string{"h"}, &Options{Root: watched("/team")}); err == nil {
		t.Error("New accepted a root that ends in watchMark")
	}
	for _, name := range []string{watchMark, "a/" + watchMark} {
		if dir := (paths{}).dir(name); strings.HasSuffix(dir, "/"+watchMark) {
			t.Errorf("path of %q: got %q, which ends in watchMark", name, dir)
		}
	}
}

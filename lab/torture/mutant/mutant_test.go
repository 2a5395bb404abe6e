package mutant

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestAll_editsFitTheSource(t *testing.T) {
	root, err := filepath.Abs("../../..")
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range append(All(), Guards()...) {
		if _, err := m.Overlay(root, t.TempDir()); err != nil {
			t.Error(err)
		}
	}
}

func TestOverlay_editMustFitOnce(t *testing.T) {
	root := t.TempDir()
	if err := os.WriteFile(filepath.Join(root, "a.go"), []byte("one two two"), 0o600); err != nil {
		t.Fatal(err)
	}
	for old, fits := range map[string]bool{"one": true, "two": false, "three": false} {
		_, err := Mutant{Name: "m", Edits: []Edit{{"a.go", old, "x"}}}.Overlay(root, t.TempDir())
		if (err == nil) != fits {
			t.Errorf("edit of %q: got error %v, want success: %v", old, err, fits)
		}
	}
}

func TestOverlay_severalEditsOfOneFile(t *testing.T) {
	root, dir := t.TempDir(), t.TempDir()
	if err := os.WriteFile(filepath.Join(root, "a.go"), []byte("one two"), 0o600); err != nil {
		t.Fatal(err)
	}
	m := Mutant{Name: "m", Edits: []Edit{{"a.go", "one", "1"}, {"a.go", "two", "2"}}}
	if _, err := m.Overlay(root, dir); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(filepath.Join(dir, "m-0-a.go"))
	if err != nil || string(b) != "1 2" {
		t.Errorf("got %q, %v, want %q", b, err, "1 2")
	}
}

func TestByName_unknown(t *testing.T) {
	if _, err := ByName("nobody"); err == nil || !strings.Contains(err.Error(), "two-at-once") {
		t.Errorf("got error %v, want one with the names of the mutants", err)
	}
}

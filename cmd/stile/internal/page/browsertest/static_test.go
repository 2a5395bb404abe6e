package browsertest

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// The page's files make no markup from texts, and need nothing from the internet.
func TestStaticFiles_areSafeAndComplete(t *testing.T) {
	files, err := filepath.Glob("../static/*")
	if err != nil || len(files) < 10 {
		t.Fatalf("found %d files: %v", len(files), err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		checked := strings.ReplaceAll(string(text), "http://www.w3.org/2000/svg", "") // names a namespace
		for _, bad := range []string{
			"innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "DOMParser", "eval(", "new Function", "://",
			"localStorage", "sessionStorage", "document.cookie",
		} {
			if strings.Contains(checked, bad) {
				t.Errorf("%s has %s", filepath.Base(file), bad)
			}
		}
	}
}

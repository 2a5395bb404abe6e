// Package guarantees holds docs/guarantees.md against the code: every test it names must exist where it says.
package guarantees

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

const root = "../.."

// folders maps the names by which the page calls packages to where they are.
var folders = map[string]string{
	"internal/keeper":    "internal/keeper",
	"stile":              ".",
	"store/etcdstore":    "store/etcdstore",
	"store/redisstore":   "store/redisstore",
	"store/redlockstore": "store/redlockstore",
	"store/zkstore":      "store/zkstore",
	"cmd/stile":          "cmd/stile",
}

func TestEveryTestThatIsNamedExists(t *testing.T) {
	page, err := os.ReadFile(filepath.Join(root, "docs/guarantees.md"))
	if err != nil {
		t.Fatal(err)
	}
	item := regexp.MustCompile("(?m)^- `([a-z/]+)`: (Test.*)$")
	named := 0
	for _, m := range item.FindAllStringSubmatch(string(page), -1) {
		folder, ok := folders[m[1]]
		if !ok {
			t.Errorf("the page names the package %q, which this test does not know", m[1])
			continue
		}
		source := testsIn(t, filepath.Join(root, folder))
		for name := range strings.SplitSeq(m[2], ", ") {
			named++
			if !strings.Contains(source, "func "+name+"(t *testing.T)") {
				t.Errorf("docs/guarantees.md names %s in %s, which does not exist", name, m[1])
			}
		}
	}
	if named < 30 {
		t.Errorf("only %d tests were found in the page: it is not read as it is written", named)
	}
	for _, promise := range []string{"P1", "P2", "P3", "P4", "P5", "P6", "P7"} {
		_, after, found := strings.Cut(string(page), "## "+promise+".")
		if section, _, _ := strings.Cut(after, "\n## "); !found || !item.MatchString(section) {
			t.Errorf("no test stands behind %s", promise)
		}
	}
}

// testsIn returns the text of all tests of a package.
func testsIn(t *testing.T, folder string) string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(folder, "*_test.go"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no tests in %s: %v", folder, err)
	}
	var all strings.Builder
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		all.Write(text)
	}
	return all.String()
}

package main

import (
	"testing"

	"github.com/stilelock/stile/internal/testservers"
)

// What the benchmark measures is worth nothing if it does not run.
func TestItRuns(t *testing.T) {
	testservers.Java(t)
	testservers.Jars(t, "zookeeper")
	if err := run(t.Context(), []string{"-turns", "1", "-block", "2"}); err != nil {
		t.Fatal(err)
	}
}

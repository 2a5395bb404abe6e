package main

import (
	"testing"

	"github.com/stilelock/stile/internal/testservers"
)

// What the benchmark measures is worth nothing if it does not run.
func TestItRuns(t *testing.T) {
	_, err := testservers.Java()
	testservers.Check(t, err)
	_, err = testservers.ClassPath("zookeeper")
	testservers.Check(t, err)
	// Here it need not be fast once it runs: so a start may take half of the processor's time.
	t.Setenv("JAVA_TOOL_OPTIONS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Dzookeeper.forceSync=no")
	if err := run(t.Context(), []string{"-turns", "1", "-block", "2"}); err != nil {
		t.Fatal(err)
	}
}

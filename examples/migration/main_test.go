package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"

	"github.com/stilelock/stile/internal/testservers"
)

// Four replicas start at the same time. One migrates, the others find nothing to do.
func TestMigration(t *testing.T) {
	redis, postgres := testservers.StartRedis(t), testservers.StartPostgres(t)
	program := filepath.Join(t.TempDir(), "migration")
	build := exec.CommandContext(t.Context(), "go", "build", "-o", program, ".")
	build.Stderr = os.Stderr
	if err := build.Run(); err != nil {
		t.Fatal(err)
	}
	const replicas = 4
	var mu sync.Mutex
	outputs := map[string]int{}
	var wg sync.WaitGroup
	for range replicas {
		wg.Go(func() {
			out, err := exec.CommandContext(t.Context(), program, redis.Addr(), postgres.DSN()).CombinedOutput()
			if err != nil {
				t.Errorf("%v\n%s", err, out)
			}
			mu.Lock()
			defer mu.Unlock()
			outputs[string(out)]++
		})
	}
	wg.Wait()
	if outputs["applied 1 migrations\n"] != 1 || outputs["applied 0 migrations\n"] != replicas-1 {
		t.Errorf("got the outputs %v, want one replica that migrates", outputs)
	}
}

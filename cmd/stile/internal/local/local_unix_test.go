//go:build unix

package local

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/stilelock/stile/internal/filelock"
	"github.com/stilelock/stile/internal/localserver"
)

// Several machines may share a home directory on a network file system. The lock of the pid file shows
// that a server runs, but no process of this machine has its number.
func TestEnsure_serverOnAnotherMachine(t *testing.T) {
	d := ServerDir{localserver.Dir(filepath.Join(t.TempDir(), "local"))}
	if err := os.Mkdir(string(d.Dir), 0o700); err != nil {
		t.Fatal(err)
	}
	pidFile := filepath.Join(string(d.Dir), "pid")
	if err := os.WriteFile(pidFile, []byte("999999999\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	server, err := filelock.Try(pidFile, filelock.Exclusive)
	if err != nil {
		t.Fatal(err)
	}
	defer server.Unlock()
	synctest.Test(t, func(t *testing.T) { // Ensure waits in case the server is starting
		_, _, err := d.Ensure(t.Context())
		if err == nil {
			t.Fatal("got no error")
		}
		for _, part := range []string{"another machine", string(d.Dir), "XDG_STATE_HOME", "--url"} {
			if !strings.Contains(err.Error(), part) {
				t.Errorf("got error %q, want it to contain %q", err, part)
			}
		}
		if strings.Contains(err.Error(), "kill") {
			t.Errorf("the error advises to kill a process of this machine: %v", err)
		}
	})
}

package examples_test

import (
	"fmt"
	"strings"
	"syscall"
	"testing"
)

// Clients in other languages and stile run exclude each other, wait in the same line, and have tokens that go up. A
// client whose lock was broken stops.
func TestClients(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ program, script string }{{"python3", "clients/lock.py"}, {"node", "clients/lock.mjs"}} {
		t.Run(c.program, func(t *testing.T) {
			t.Parallel()
			require(t, c.program)
			s := newSite(t)
			endpoint, prefix, _ := strings.Cut(strings.TrimPrefix(s.url, "etcd://"), "/")
			s.env = append(s.env, "STILE_HTTP=http://"+endpoint)
			name := prefix + "/orders/42"

			first := s.start(c.program, c.script, name)
			first.awaitText("holding " + name)
			held := s.awaitLine("orders/42", 1, 0).Holders[0]
			if want := fmt.Sprintf("holding %s with token %d\n", name, held.Token); first.text() != want || !held.Foreign {
				t.Errorf("got %q, want %q, as that of a foreign client", first.text(), want)
			}
			s.start("stile", "run", "-n", "orders/42", "--", "true").expectExit(75)

			second := s.start("stile", "run", "--ttl", "60", "orders/42", "--", "sh", "-c", "echo held with $STILE_TOKEN; read end")
			s.awaitLine("orders/42", 1, 1)
			third := s.start(c.program, c.script, name)
			s.awaitLine("orders/42", 1, 2)
			fourth := s.start(c.program, c.script, name)
			s.awaitLine("orders/42", 1, 3)
			if err := fourth.Process.Signal(syscall.SIGINT); err != nil { // it gives up
				t.Fatal(err)
			}
			s.awaitLine("orders/42", 1, 2)

			first.enter("step 1")
			first.awaitText("working on step 1\n")
			first.stdin.Close()
			first.expectExit(0)

			second.awaitText("held with ")
			token := s.awaitLine("orders/42", 1, 1).Holders[0].Token
			if want := fmt.Sprintf("held with %d\n", token); second.text() != want || token <= held.Token {
				t.Errorf("got %q, want %q, which is more than %d", second.text(), want, held.Token)
			}
			second.enter("")
			second.expectExit(0)

			third.awaitText("holding " + name)
			last := s.awaitLine("orders/42", 1, 0).Holders[0].Token
			if last <= token {
				t.Errorf("got token %d after %d, want a larger one", last, token)
			}
			if _, err := s.client.Break(t.Context(), "orders/42", last); err != nil {
				t.Fatal(err)
			}
			third.enter("step 2")
			third.expectExit(1)
			if text := third.text(); strings.Contains(text, "working on step 2") || !strings.Contains(text, "lost the lock "+name) {
				t.Errorf("after its lock was broken: %s", text)
			}
			s.awaitLine("orders/42", 0, 0)
		})
	}
}

package main

import (
	"bufio"
	"os"
	"os/exec"
	"strings"
	"testing"
)

// TestMain is the program itself in the process that the test starts.
func TestMain(m *testing.M) {
	if os.Getenv("STILE_EXAMPLE") != "" {
		main()
		return
	}
	os.Exit(m.Run())
}

// The program acquires the lock, and releases it on SIGINT.
func TestLock(t *testing.T) {
	program := exec.Command(os.Args[0], "orders/42")
	program.Env = append(os.Environ(), "STILE_EXAMPLE=lock", "STILE_URL=mem:")
	program.Stderr = os.Stderr
	stdout, err := program.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := program.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = program.Process.Kill() }()
	line, err := bufio.NewReader(stdout).ReadString('\n')
	if err != nil || !strings.HasPrefix(line, `holding "orders/42" with token `) {
		t.Fatalf("got the line %q, %v, want that it holds the lock", line, err)
	}
	if err := program.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	if err := program.Wait(); err != nil {
		t.Errorf("after SIGINT: %v", err)
	}
}

package main_test

import (
	"fmt"
	"strings"
	"sync"
	"syscall"
)

// serving is a stile serve that was started with any flags.
type serveCommand struct {
	*command
	log *logBuffer
}

// transcript is what a process says, as it says it.
type logBuffer struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *logBuffer) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(b)
}

func (l *logBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// launch starts stile serve. It need not become ready.
func (m *machine) launch(args ...string) *serveCommand {
	m.t.Helper()
	s := &serveCommand{command: m.command(append([]string{"serve"}, args...)...), log: new(logBuffer)}
	s.Cmd.Stderr = s.log
	s.spawn()
	return s
}

// serve starts stile serve and waits until it is ready.
func (m *machine) serve(args ...string) *serveCommand {
	m.t.Helper()
	s := m.launch(args...)
	s.awaitLog("msg=ready")
	return s
}

// says waits until the server has said something.
func (s *serveCommand) awaitLog(text string) {
	s.m.t.Helper()
	eventually(s.m.t, fmt.Sprintf("%v says %q", s.Args[1:], text), func() bool {
		if strings.Contains(s.log.String(), text) {
			return true
		}
		select {
		case <-s.done:
			s.m.t.Fatalf("%v has ended with %v: %s", s.Args[1:], s.ProcessState, s.log)
		default:
		}
		return false
	})
}

// found returns what the ready line says: its url, or the value of another key.
func (s *serveCommand) readyValue(key string) string {
	s.m.t.Helper()
	for line := range strings.Lines(s.log.String()) {
		if !strings.Contains(line, "msg=ready") {
			continue
		}
		for field := range strings.FieldsSeq(line) {
			if value, ok := strings.CutPrefix(field, key+"="); ok {
				return strings.Trim(value, `"`)
			}
		}
	}
	s.m.t.Fatalf("the ready line has no %s: %s", key, s.log)
	return ""
}

// kill ends the server with SIGKILL, and waits for that.
func (s *serveCommand) kill() {
	s.m.t.Helper()
	s.signal(syscall.SIGKILL)
	s.exitCode()
}

package main_test

import (
	"fmt"
	"strings"
	"sync"
	"syscall"
)

// serveCommand is a stile serve that may have any flags.
type serveCommand struct {
	*command
	log *logBuffer
}

// logBuffer collects what a process logs. It can be read while the process runs.
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

// launch starts stile serve and does not wait until it is ready.
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

// awaitLog waits until the server has logged text.
func (s *serveCommand) awaitLog(text string) {
	s.m.t.Helper()
	eventually(s.m.t, fmt.Sprintf("log of %v: %q", s.Args[1:], text), func() bool {
		if strings.Contains(s.log.String(), text) {
			return true
		}
		select {
		case <-s.done:
			s.m.t.Fatalf("%v ended with %v: %s", s.Args[1:], s.ProcessState, s.log)
		default:
		}
		return false
	})
}

// readyValue returns the value of a key in the ready line, for example url.
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

// kill kills the server with SIGKILL and waits until it has ended.
func (s *serveCommand) kill() {
	s.m.t.Helper()
	s.signal(syscall.SIGKILL)
	s.exitCode()
}

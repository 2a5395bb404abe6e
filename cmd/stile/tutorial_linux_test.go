package main_test

import (
	"bytes"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestTutorial runs docs/tutorial.md as a reader would: it types the commands of the document into
// shells and compares their output. The info string of a fenced block says what to do with it:
//
//	go file=NAME, sh file=NAME   write the text to this file in the program's directory
//	console terminal=N           run the lines that begin with "$ " in terminal N; the other lines
//	                             are their output
//
// A console block may have one more word:
//
//	running   its last command does not end here; the next block of the terminal waits for the end,
//	          and begins with the output
//	again     repeat each command until its output is that of the document: what it reads changes
//	quiet     do not compare the output
//
// A command must succeed, unless the next one is echo $?. Numbers after "token" and "pid" may differ
// from the document's, but each must stand for the same number everywhere, also in commands, and
// tokens must keep their order. Times, sessions and users are not compared. The clone $HOME/stile is
// the repository.
func TestTutorial(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../docs/tutorial.md")
	if err != nil {
		t.Fatal(err)
	}
	m := newMachine(t)
	repo, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	// The reader's Go, without the network. Without debug information the linker needs less time.
	env, err := exec.Command("go", "env", "GOCACHE", "GOMODCACHE", "GOFLAGS").Output()
	if err != nil {
		t.Fatal(err)
	}
	dirs := strings.Split(string(env), "\n")
	m.vars = append(m.vars, "GOCACHE="+dirs[0], "GOMODCACHE="+dirs[1], "GOFLAGS="+dirs[2]+" -buildvcs=false -ldflags=-w",
		"GOWORK=off", "GOPROXY=off", "GOSUMDB=off", "GOTOOLCHAIN=local")

	r := &tutorial{m: m, repo: repo, terminals: map[string]*terminalShell{}, numbers: map[tutorialNumber]string{}}
	blocks := tutorialBlocks(t, string(text))
	for _, b := range blocks {
		r.block(b)
	}
	for name, sh := range r.terminals {
		if sh.pending != nil {
			t.Errorf("the command %q in terminal %s has no end in the document", sh.pending.text, name)
		}
	}
}

// tutorialBlock is a fenced block of the document.
type tutorialBlock struct {
	line   int
	info   []string // "console", "terminal=1", "again"
	text   []string
	values map[string]string
}

func (b tutorialBlock) has(word string) bool { return slices.Contains(b.info, word) }

// tutorialBlocks returns the document's fenced blocks. It fails on a block that would otherwise be
// left out silently.
func tutorialBlocks(t *testing.T, document string) []tutorialBlock {
	t.Helper()
	var blocks []tutorialBlock
	var open *tutorialBlock
	for i, line := range strings.Split(document, "\n") {
		switch {
		case open == nil && strings.HasPrefix(strings.TrimSpace(line), "```"):
			open = &tutorialBlock{line: i + 1, info: strings.Fields(strings.TrimLeft(line, " `")), values: map[string]string{}}
			for _, word := range open.info {
				if key, value, ok := strings.Cut(word, "="); ok {
					open.values[key] = value
				} else if !slices.Contains([]string{"console", "go", "sh", "running", "again", "quiet"}, word) {
					t.Fatalf("tutorial.md:%d: unknown word %q", i+1, word)
				}
			}
			if (open.values["terminal"] == "") == (open.values["file"] == "") {
				t.Fatalf("tutorial.md:%d: a block needs either terminal=N or file=NAME", i+1)
			}
		case open != nil && line == "```":
			blocks = append(blocks, *open)
			open = nil
		case open != nil:
			open.text = append(open.text, line)
		}
	}
	if open != nil || len(blocks) == 0 {
		t.Fatal("tutorial.md: no blocks, or one is not closed")
	}
	return blocks
}

// tutorial is the document being run.
type tutorial struct {
	m         *machine
	repo      string
	terminals map[string]*terminalShell
	numbers   map[tutorialNumber]string // what they are here
}

// tutorialNumber is a token or a pid in the document.
type tutorialNumber struct{ kind, value string }

// typed is a command of the document, and what it prints there.
type typed struct {
	line   int
	text   string
	output []string
}

func (r *tutorial) block(b tutorialBlock) {
	t := r.m.t
	t.Helper()
	if name := b.values["file"]; name != "" {
		r.m.write(filepath.Join("page", name), strings.Join(b.text, "\n")+"\n", 0o644)
		return
	}
	sh := r.terminal(b.values["terminal"])
	var commands []*typed
	if sh.pending != nil {
		commands = append(commands, sh.pending) // its output goes on in this block
	}
	for i, line := range b.text {
		if text, ok := strings.CutPrefix(line, "$ "); ok {
			commands = append(commands, &typed{line: b.line + 1 + i, text: text})
		} else if len(commands) == 0 {
			t.Fatalf("tutorial.md:%d: output without a command", b.line+1+i)
		} else {
			commands[len(commands)-1].output = append(commands[len(commands)-1].output, line)
		}
	}
	continued := sh.pending
	sh.pending = nil
	for i, c := range commands {
		last := i == len(commands)-1
		if c != continued {
			sh.start(r.here(c.text))
		}
		if last && b.has("running") {
			sh.pending = c
			return
		}
		r.finish(sh, c, b, !last && commands[i+1].text == "echo $?")
	}
}

// stoppedStatus is a shell's exit status of a job that SIGSTOP has stopped.
const stoppedStatus = 128 + int(syscall.SIGSTOP)

// finish waits for the end of a command and checks what it has printed.
func (r *tutorial) finish(sh *terminalShell, c *typed, b tutorialBlock, mayFail bool) {
	t := r.m.t
	t.Helper()
	for deadline := time.Now().Add(commandTimeout); ; {
		got, status := sh.finish()
		if status == stoppedStatus { // which a shell at a terminal shows
			got = append(got, "", "[1]+ Stopped "+c.text)
		}
		var err error
		if !b.has("quiet") {
			err = r.compare(c.output, got)
		}
		if err == nil && status != 0 && status != stoppedStatus && !mayFail {
			err = fmt.Errorf("exit status %d", status)
		}
		if err == nil {
			return
		}
		if !b.has("again") || time.Now().After(deadline) {
			t.Fatalf("tutorial.md:%d: $ %s\n%v\nprinted:\n%s\nwant:\n%s",
				c.line, c.text, err, strings.Join(got, "\n"), strings.Join(c.output, "\n"))
		}
		sh.start(r.here(c.text))
	}
}

// tutorialVariable matches what may differ from the document.
var tutorialVariable = regexp.MustCompile(`\b(token|pid) (\d+)|\b\d{4,}\b|\b[\w.-]+@[\w.-]+|\bsession [0-9a-f]+|` +
	`\bless than \S+|<?(?:\b|-)(?:\d+(?:\.\d+)?(?:ms|h|m|s))+\b`)

// compare compares the output with the document's lines. Runs of spaces count as one.
func (r *tutorial) compare(want, got []string) error {
	if len(want) != len(got) {
		return fmt.Errorf("%d lines, want %d", len(got), len(want))
	}
	numbers := maps.Clone(r.numbers)
	for i := range want {
		w, g := strings.Join(strings.Fields(want[i]), " "), strings.Join(strings.Fields(got[i]), " ")
		if tutorialVariable.ReplaceAllString(w, "$1?") != tutorialVariable.ReplaceAllString(g, "$1?") {
			return fmt.Errorf("%q, want %q", g, w)
		}
		theirs := tutorialVariable.FindAllStringSubmatch(g, -1)
		for j, v := range tutorialVariable.FindAllStringSubmatch(w, -1) {
			number, ok := tutorialNumber{v[1], v[2]}, theirs[j][2]
			if number.kind == "" {
				if number, ok = (tutorialNumber{"token", v[0]}), theirs[j][0]; numbers[number] == "" {
					continue // neither a token nor a pid
				}
			}
			if known := numbers[number]; known != "" && known != ok {
				return fmt.Errorf("%s %s was %s, and is %s", number.kind, number.value, known, ok)
			}
			numbers[number] = ok
		}
	}
	if err := checkOrder(numbers); err != nil {
		return err
	}
	r.numbers = numbers
	return nil
}

// checkOrder checks that different tokens and pids of the document are different here, and that
// tokens keep their order.
func checkOrder(numbers map[tutorialNumber]string) error {
	for a, x := range numbers {
		for b, y := range numbers {
			if a == b || a.kind != b.kind {
				continue
			}
			smaller := func(s, t string) bool { return len(s) < len(t) || len(s) == len(t) && s < t }
			if x == y || a.kind == "token" && smaller(a.value, b.value) != smaller(x, y) {
				return fmt.Errorf("%s %s is %s, and %s is %s", a.kind, a.value, x, b.value, y)
			}
		}
	}
	return nil
}

var tutorialPid = regexp.MustCompile(`\b\d{4,}\b`)

// here returns a command of the document with the paths and process ids of this run.
func (r *tutorial) here(command string) string {
	command = tutorialPid.ReplaceAllStringFunc(command, func(pid string) string {
		if here := r.numbers[tutorialNumber{"pid", pid}]; here != "" {
			return here
		}
		return pid
	})
	return strings.ReplaceAll(command, "$HOME/stile", r.repo)
}

// terminalShell is a shell with job control. The test types its commands. There is no terminal: on
// a terminal, a waiting stile shows a line that changes with time.
type terminalShell struct {
	m       *machine
	keys    *os.File
	screen  output
	shown   int    // how much of the screen has been looked at
	command string // the last one typed
	done    chan struct{}
	pending *typed // a command whose output goes on in a later block
}

// commandEnd is printed by the shell after each command, with its exit status.
var commandEnd = regexp.MustCompile(`\x01(\d+)\n`)

// terminal returns the terminal with that number; a new one begins in the repository.
func (r *tutorial) terminal(number string) *terminalShell {
	t := r.m.t
	t.Helper()
	if sh := r.terminals[number]; sh != nil {
		return sh
	}
	keyboard, keys, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer keyboard.Close()
	sh := &terminalShell{m: r.m, keys: keys, screen: newOutput(t), done: make(chan struct{})}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	bash := exec.Command(self, "sh", "-c", "exec bash /dev/fd/3 3<&0 </dev/null") // under a reaper of its own
	bash.Env, bash.Dir = append(slices.Clone(r.m.vars), "PWD="+r.repo, reaperVar+"="+r.m.path("terminal"+number+".pid")), r.repo
	bash.Stdin = keyboard
	bash.Stdout, bash.Stderr = sh.screen.file, sh.screen.file
	bash.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := bash.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(sh.done)
		_ = bash.Wait()
	}()
	t.Cleanup(func() {
		keys.Close()
		// What it has started is in its session, stopped jobs too.
		for _, pid := range sessionOf(bash.Process.Pid) {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
		<-sh.done
	})
	// The hold must survive any delay of a busy machine, see machine.runCommand.
	sh.start("set -m; stile() { case $1 in run) shift; set -- run --ttl " + longTTL + ` "$@"; esac; command stile "$@"; }`)
	if got, status := sh.finish(); status != 0 {
		t.Fatalf("setup of the terminal: exit status %d, %q", status, got)
	}
	r.terminals[number] = sh
	return sh
}

// start types a command. The shell keeps its exit status, for a later echo $?.
func (sh *terminalShell) start(command string) {
	sh.m.t.Helper()
	sh.command = command
	if _, err := fmt.Fprintf(sh.keys, "%s\n{ s=$?; printf '\\001%%d\\n' $s; (exit $s); } 3<&-\n", command); err != nil {
		sh.m.t.Fatal(err)
	}
}

// jobEnded matches what a shell without a terminal prints when a signal has ended a command. A
// shell with a terminal prints only the last word.
var jobEnded = regexp.MustCompile(`^/dev/fd/3: line \d+: +\d+ (Killed) .*$`)

// commandTimeout limits the wait for the end of a command. The builds need seconds of processor time,
// of which a busy machine may give them a fiftieth.
const commandTimeout = 10 * time.Minute

// finish waits until the typed command ends. It returns the command's output and exit status.
func (sh *terminalShell) finish() (lines []string, status int) {
	t := sh.m.t
	t.Helper()
	var shown []byte
	var end []int
	for deadline := time.Now().Add(commandTimeout); end == nil; time.Sleep(5 * time.Millisecond) {
		select {
		case <-sh.done:
			t.Fatalf("the shell has ended: %s", sh.screen)
		default:
		}
		shown = sh.screen.Bytes()[sh.shown:]
		if end = commandEnd.FindSubmatchIndex(shown); end == nil && time.Now().After(deadline) {
			t.Fatalf("$ %s\nhas not ended within %v, and has printed:\n%s", sh.command, commandTimeout, shown)
		}
	}
	sh.shown += end[1]
	status, _ = strconv.Atoi(string(shown[end[2]:end[3]]))
	for line := range strings.Lines(string(shown[:end[0]])) {
		lines = append(lines, jobEnded.ReplaceAllString(strings.TrimRight(line, " \n"), "$1"))
	}
	return lines, status
}

// sessionOf returns the processes in the session that a process leads.
func sessionOf(leader int) []int {
	var pids []int
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, name := range stats {
		stat, err := os.ReadFile(name)
		if err != nil {
			continue // it has ended
		}
		fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:])) // state, ppid, pgrp, session
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(name)))
		if err == nil && len(fields) > 3 && fields[3] == strconv.Itoa(leader) {
			pids = append(pids, pid)
		}
	}
	return pids
}

package testservers

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// Postgres is a PostgreSQL server process.
//
// It listens only on a unix socket, and only the system user that runs the tests can connect, as a
// superuser. It does not fsync its data. This loses nothing when the process is killed, and saves
// tests from waiting for the disk.
type Postgres struct {
	database
}

// StartPostgres starts a PostgreSQL server with an empty database, waits until it is ready, and
// stops it when the test ends. It runs the newest version of Debian's packages, or else the one on
// the PATH.
//
// Each element of config is a setting, for example "max_connections=20", and overrides the
// defaults.
func StartPostgres(t testing.TB, config ...string) *Postgres {
	t.Helper()
	p, err := NewPostgres(config...)
	Check(t, err)
	closeWithTest(t, p)
	return p
}

// NewPostgres is [StartPostgres] for a server that belongs to no test.
func NewPostgres(config ...string) (*Postgres, error) {
	bin, err := postgresBin()
	if err != nil {
		return nil, err
	}
	p := &Postgres{database{name: "postgres", account: "postgres", stop: syscall.SIGQUIT, stopName: "QUIT"}}
	if err := p.create(); err != nil {
		return nil, err
	}
	// With peer authentication, only the system user of the same name gets the superuser's role.
	err = p.run(filepath.Join(bin, "initdb"), "--pgdata="+p.data(), "--no-sync", "--no-instructions",
		"--username="+p.client, "--auth-local=peer", "--auth-host=reject", "--encoding=UTF8", "--locale=C")
	if err == nil {
		args := []string{"-D", p.data(), "-k", p.dir}
		for _, setting := range append([]string{
			"listen_addresses=", "fsync=off", "full_page_writes=off", "synchronous_commit=off",
			"dynamic_shared_memory_type=mmap", // in the data folder, which Close removes
		}, config...) {
			args = append(args, "-c", setting)
		}
		err = p.start("database system is ready to accept connections", filepath.Join(bin, "postgres"), args...)
	}
	if err != nil {
		return nil, p.discard(err)
	}
	return p, nil
}

// DSN returns how pgx and other clients connect to the server's database: a string of words, such
// as "host=/tmp/postgres123", to which others may be appended.
func (p *Postgres) DSN() string {
	quote := strings.NewReplacer(`\`, `\\`, `'`, `\'`).Replace
	return fmt.Sprintf("host='%s' user='%s' dbname=postgres", quote(p.dir), quote(p.client))
}

// postgresBin returns the folder of the newest server's programs.
func postgresBin() (string, error) {
	const debian = "/usr/lib/postgresql"
	entries, err := os.ReadDir(debian)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return "", err
	}
	newest, bin := -1, ""
	for _, e := range entries {
		dir := filepath.Join(debian, e.Name(), "bin")
		version, err := strconv.Atoi(e.Name())
		if err != nil || version < newest {
			continue
		}
		// A package of libraries only creates the folder too.
		if _, err := os.Stat(filepath.Join(dir, "initdb")); err == nil {
			newest, bin = version, dir
		}
	}
	if bin != "" {
		return bin, nil
	}
	initdb, err := exec.LookPath("initdb")
	if err != nil {
		return "", &missingError{"postgres", debian, "run `make servers`"}
	}
	return filepath.Dir(initdb), nil
}

// A database is the process of a SQL database, in a folder of its own. Such servers refuse to run as
// root: if the tests do, they run as the user of their Debian package.
type database struct {
	name     string         // of the program
	account  string         // the user of the Debian package
	stop     syscall.Signal // ends the process at once
	stopName string         // its name

	client string   // the system user that runs the tests, and the user of the database
	as     []string // the command that runs a program as the account; empty if the tests are not run as root
	dir    string   // data, log and socket; nobody else may open it

	process *process // the last one started
}

// create creates the folder.
func (d *database) create() error {
	self, err := user.Current()
	if err != nil {
		return err
	}
	d.client = self.Username
	// t.TempDir contains the test's name and may exceed the length limit of unix socket paths.
	if d.dir, err = os.MkdirTemp("", d.name); err != nil {
		return err
	}
	if os.Geteuid() == 0 {
		if err := d.demote(); err != nil {
			return d.discard(err)
		}
	}
	return nil
}

// discard closes a server that could not be started because of err, and returns an error with the
// end of its log.
func (d *database) discard(err error) error {
	return errors.Join(fmt.Errorf("cannot start %s in %s: %w\n%s", d.name, d.dir, err, d.Log()), d.Close())
}

// demote gives the folder to the account, and makes programs run as it.
func (d *database) demote() error {
	u, err := user.Lookup(d.account)
	if err != nil {
		return err
	}
	uid, err := strconv.Atoi(u.Uid)
	if err != nil {
		return err
	}
	gid, err := strconv.Atoi(u.Gid)
	if err != nil {
		return err
	}
	setpriv, err := exec.LookPath("setpriv") // of util-linux
	if err != nil {
		return err
	}
	// A change of the user clears the signal of sysProcAttr, so setpriv sets it again.
	d.as = []string{setpriv, "--reuid=" + u.Uid, "--regid=" + u.Gid, "--clear-groups", "--pdeathsig=" + d.stopName, "--"}
	return os.Chown(d.dir, uid, gid)
}

// launch starts a program as the account.
func (d *database) launch(program string, args ...string) (err error) {
	command := append(append([]string{}, d.as...), append([]string{program}, args...)...)
	d.process, err = startProcess(command[0], command[1:], d.log())
	return err
}

// run runs a program until it ends.
func (d *database) run(program string, args ...string) error {
	if err := d.launch(program, args...); err != nil {
		return err
	}
	if err := d.process.wait(processTimeout); err != nil {
		return err
	}
	if d.process.err != nil {
		return fmt.Errorf("%s has failed: %s", filepath.Base(program), d.process.exitReason())
	}
	return nil
}

// start starts the server, and polls its log for the text that tells that it is ready.
func (d *database) start(ready, program string, args ...string) error {
	if err := d.launch(program, args...); err != nil {
		return err
	}
	for end := time.Now().Add(processTimeout); time.Now().Before(end); {
		if log, err := os.ReadFile(d.log()); err != nil || strings.Contains(string(log), ready) {
			return err
		}
		select {
		case <-d.process.done:
			return fmt.Errorf("it has exited: %s", d.process.exitReason())
		case <-time.After(5 * time.Millisecond):
		}
	}
	return fmt.Errorf("it is not ready after %v", processTimeout)
}

// Close stops the server at once, without waiting for its clients, and removes its data.
func (d *database) Close() error {
	var err error
	if d.process.running() {
		// Killed with SIGKILL, PostgreSQL would leave processes and shared memory.
		if err = d.process.proc.Signal(d.stop); errors.Is(err, os.ErrProcessDone) {
			err = nil
		}
		if err == nil {
			err = d.process.wait(time.Minute)
		}
		if err != nil {
			err = errors.Join(err, d.process.kill())
		}
	}
	return errors.Join(err, os.RemoveAll(d.dir))
}

// Log returns the end of the server's log.
func (d *database) Log() string {
	return fmt.Sprintf("end of the log of %s in %s:\n%s", d.name, d.dir, tail(d.log(), 4<<10))
}

func (d *database) data() string { return filepath.Join(d.dir, "data") }
func (d *database) log() string  { return filepath.Join(d.dir, "log") }

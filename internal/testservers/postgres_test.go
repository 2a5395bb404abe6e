package testservers

import (
	"bufio"
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"
)

// A client runs a statement with the client program of a database and returns the output.
type client func(t *testing.T, d *database, statement string) (string, error)

// databases are the databases with their sockets and client programs.
var databases = []struct {
	name   string
	find   func() (string, error) // fails if it is not installed
	start  func() (*database, error)
	socket func(*database) string
	client client
}{
	{
		"postgres", postgresBin,
		func() (*database, error) {
			p, err := NewPostgres("max_connections=19")
			if err != nil {
				return nil, err
			}
			return &p.database, nil
		},
		func(d *database) string { return filepath.Join(d.dir, ".s.PGSQL.5432") },
		func(t *testing.T, d *database, statement string) (string, error) {
			bin, err := postgresBin()
			if err != nil {
				t.Fatal(err)
			}
			return output(filepath.Join(bin, "psql"), "-X", "-A", "-t", "-c", statement, (&Postgres{*d}).DSN())
		},
	},
	{
		"mariadb", findMariaDB,
		func() (*database, error) {
			m, err := NewMariaDB("max_connections=19")
			if err != nil {
				return nil, err
			}
			return &m.database, nil
		},
		func(d *database) string { return (&MariaDB{*d}).socket() },
		func(_ *testing.T, d *database, statement string) (string, error) {
			return output("mariadb", "--no-defaults", "-N", "-B", "-S", (&MariaDB{*d}).socket(), "-u", d.client, "-e", statement, "test")
		},
	},
}

// findMariaDB returns the path of the server if the two other programs that the tests run are installed too.
func findMariaDB() (string, error) {
	for _, name := range []string{"mariadb-install-db", "mariadb"} {
		if _, err := mariadbProgram(name); err != nil {
			return "", err
		}
	}
	return mariadbProgram("mariadbd")
}

func output(program string, args ...string) (string, error) {
	b, err := exec.Command(program, args...).CombinedOutput()
	return strings.TrimSpace(string(b)), err
}

// A database accepts the user of the tests only, has the test's settings, and leaves nothing.
func TestDatabase(t *testing.T) {
	t.Parallel()
	for _, c := range databases {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			d, err := c.start()
			Check(t, err)
			t.Cleanup(func() {
				if err := d.Close(); err != nil { // a second time
					t.Error(err)
				}
			})
			setting := map[string]string{"postgres": "SHOW max_connections", "mariadb": "SELECT @@max_connections"}[c.name]
			if out, err := c.client(t, d, setting); err != nil || out != "19" {
				t.Errorf("%s: got %q, %v; want 19", setting, out, err)
			}
			other := *d
			other.client = "stranger"
			if out, err := c.client(t, &other, "SELECT 1"); err == nil {
				t.Errorf("another user: got %q, want it refused", out)
			}
			if info, err := os.Stat(d.dir); err != nil || runtime.GOOS != "windows" && info.Mode().Perm() != 0o700 {
				t.Errorf("the folder: got mode %v, %v; want 0700", info.Mode(), err)
			}
			if err := d.Close(); err != nil {
				t.Error(err)
			}
			if _, err := os.Stat(d.dir); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("the folder after Close: got %v, want ErrNotExist", err)
			}
		})
	}
}

// A database ends when the test program is killed.
func TestDatabase_endsWithTests(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("only Linux ends the server with the tests")
	}
	const variable = "TESTSERVERS_DATABASE"
	for _, c := range databases {
		if os.Getenv(variable) == c.name { // this is the program that will be killed
			d, err := c.start()
			Check(t, err)
			if _, err := os.Stdout.WriteString("socket: " + c.socket(d) + "\n"); err != nil {
				t.Fatal(err)
			}
			<-t.Context().Done()
		}
	}
	for _, c := range databases {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			_, err := c.find()
			Check(t, err)
			cmd := exec.Command(os.Args[0], "-test.run=^TestDatabase_endsWithTests$")
			cmd.Env = append(os.Environ(), variable+"="+c.name)
			cmd.SysProcAttr = sysProcAttr()
			out, err := cmd.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			runtime.LockOSThread() // for Pdeathsig: see startProcess
			defer runtime.UnlockOSThread()
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			var text strings.Builder
			socket := ""
			for lines := bufio.NewScanner(out); socket == "" && lines.Scan(); {
				text.WriteString(lines.Text() + "\n")
				_, socket, _ = strings.Cut(lines.Text(), "socket: ")
			}
			if err := cmd.Process.Signal(syscall.SIGKILL); err != nil && !errors.Is(err, os.ErrProcessDone) {
				t.Error(err)
			}
			_ = cmd.Wait()
			if socket == "" {
				t.Fatalf("no server was started:\n%s", text.String())
			}
			t.Cleanup(func() {
				if err := os.RemoveAll(filepath.Dir(socket)); err != nil {
					t.Error(err)
				}
			})
			// The process is not a child of this one, so poll.
			for end := time.Now().Add(processTimeout); ; time.Sleep(5 * time.Millisecond) {
				conn, err := net.Dial("unix", socket)
				if err != nil {
					return
				}
				conn.Close()
				if time.Now().After(end) {
					t.Fatalf("the server still runs %v after its test program", processTimeout)
				}
			}
		})
	}
}

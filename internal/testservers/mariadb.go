package testservers

import (
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

// MariaDB is a MariaDB server process.
//
// It listens only on a unix socket, and only the system user that runs the tests can connect, with
// all privileges. It does not fsync its data. This loses nothing when the process is killed, and
// saves tests from waiting for the disk.
type MariaDB struct {
	database
}

// StartMariaDB starts a MariaDB server with an empty database, waits until it is ready, and stops
// it when the test ends. It runs the program on the PATH or in /usr/sbin.
//
// Each element of config is an option of mariadbd, for example "max_connections=20", and overrides
// the defaults.
func StartMariaDB(t testing.TB, config ...string) *MariaDB {
	t.Helper()
	m, err := NewMariaDB(config...)
	Check(t, err)
	closeWithTest(t, m)
	return m
}

// NewMariaDB is [StartMariaDB] for a server that belongs to no test.
func NewMariaDB(config ...string) (*MariaDB, error) {
	server, err := mariadbProgram("mariadbd")
	if err != nil {
		return nil, err
	}
	install, err := mariadbProgram("mariadb-install-db")
	if err != nil {
		return nil, err
	}
	m := &MariaDB{database{name: "mariadb", account: "mysql", stop: syscall.SIGKILL, stopName: "KILL"}}
	if err := m.create(); err != nil {
		return nil, err
	}
	options := []string{"--no-defaults", "--datadir=" + m.data(), "--tmpdir=" + m.dir, "--innodb-log-file-size=16M"}
	// With the socket plugin, only the system user of the same name can connect. There is no anonymous
	// user either, which would come with install's test database.
	err = m.run(install, append(options, "--skip-test-db", "--skip-name-resolve",
		"--auth-root-authentication-method=socket", "--auth-root-socket-user="+m.client)...)
	first := filepath.Join(m.dir, "first.sql")
	if err == nil {
		err = os.WriteFile(first, []byte("CREATE DATABASE test;\n"), 0o644)
	}
	if err == nil {
		options = append(options, "--socket="+m.socket(), "--skip-networking", "--pid-file="+filepath.Join(m.dir, "pid"),
			"--init-file="+first, "--innodb-flush-log-at-trx-commit=0", "--innodb-flush-method=nosync")
		for _, option := range config {
			options = append(options, "--"+option)
		}
		err = m.start("ready for connections", server, options...)
	}
	if err != nil {
		return nil, m.discard(err)
	}
	return m, nil
}

// DSN returns how github.com/go-sql-driver/mysql connects to the server's database test. Parameters
// may be appended to it after a question mark.
func (m *MariaDB) DSN() string { return fmt.Sprintf("%s@unix(%s)/test", m.client, m.socket()) }

func (m *MariaDB) socket() string { return filepath.Join(m.dir, "sock") }

// mariadbProgram returns the path of a program. Debian's server is not on the PATH of all users.
func mariadbProgram(name string) (string, error) {
	path, err := installed(name)
	if err == nil {
		return path, nil
	}
	path = "/usr/sbin/" + name
	if _, missing := os.Stat(path); missing != nil {
		return "", err
	}
	return path, nil
}

//go:build linux

package guards_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/go-zookeeper/zk"
	"github.com/redis/rueidis"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/stilelock/stile"
	"github.com/stilelock/stile/guard"
	"github.com/stilelock/stile/guard/fileguard"
	"github.com/stilelock/stile/guard/httpguard"
	"github.com/stilelock/stile/guard/s3guard"
	"github.com/stilelock/stile/guard/sqlguard"
	"github.com/stilelock/stile/internal/testservers"
	"github.com/stilelock/stile/lab/guards"
	"github.com/stilelock/stile/store/etcdstore/etcdguard"
	"github.com/stilelock/stile/store/redisstore/redisguard"
	"github.com/stilelock/stile/store/zkstore/zkguard"
	"github.com/stilelock/stile/storeurl"
)

// fencingPage returns docs/fencing.md.
func fencingPage(t *testing.T) string {
	t.Helper()
	b, err := os.ReadFile("../../docs/fencing.md")
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

var block = regexp.MustCompile("(?s)```(\\w+)(?: file=(\\S+))?\n(.*?)```")

// blocks returns the code blocks of the page in a language.
func blocks(t *testing.T, language string) (texts []string) {
	t.Helper()
	for _, b := range block.FindAllStringSubmatch(fencingPage(t), -1) {
		if b[1] == language && b[2] == "" {
			texts = append(texts, b[3])
		}
	}
	return texts
}

// writeFiles writes the files of the page to dir.
func writeFiles(t *testing.T, dir string) {
	t.Helper()
	for _, b := range block.FindAllStringSubmatch(fencingPage(t), -1) {
		if b[2] != "" {
			if err := os.WriteFile(filepath.Join(dir, b[2]), []byte(b[3]), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// The page's SQL, on PostgreSQL.
func TestFencing_sql(t *testing.T) {
	t.Parallel()
	db, err := sql.Open("pgx", postgresServer.Get(t).DSN())
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	db.SetMaxOpenConns(1) // the schema is that of one connection
	ctx := t.Context()
	exec := func(query string, args ...any) int64 {
		t.Helper()
		result, err := db.ExecContext(ctx, query, args...)
		if err != nil {
			t.Fatal(err)
		}
		n, err := result.RowsAffected()
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	exec("CREATE SCHEMA fencing; SET search_path TO fencing; CREATE TABLE accounts (id int, balance int, token bigint DEFAULT 0)")
	exec("INSERT INTO accounts VALUES (42, 100)")
	statements := blocks(t, "sql")
	if len(statements) != 3 {
		t.Fatalf("got %d SQL statements, want three", len(statements))
	}
	for i, step := range []struct{ token, rows int64 }{{10, 1}, {10, 1}, {9, 0}, {11, 1}, {0, 0}} {
		if n := exec(statements[0], step.token); n != step.rows {
			t.Errorf("step %d: token %d changed %d rows, want %d", i, step.token, n, step.rows)
		}
	}
	exec(statements[1])
	for i, step := range []struct{ token, newest int64 }{{10, 10}, {9, 10}, {11, 11}} {
		var newest int64
		if err := db.QueryRowContext(ctx, statements[2], step.token).Scan(&newest); err != nil || newest != step.newest {
			t.Errorf("step %d: token %d: got %d, %v, want %d", i, step.token, newest, err, step.newest)
		}
	}
	if _, err := db.ExecContext(ctx, statements[2], 0); err == nil {
		t.Error("token 0 was accepted")
	}
}

// The page's scripts: the first tokens are real ones of `stile run`, and then a stale holder comes.
func TestFencing_scripts(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	writeFiles(t, dir)
	if out, err := exec.Command("go", "build", "-C", "../../cmd/stile", "-buildvcs=false", "-o", filepath.Join(dir, "stile"), ".").CombinedOutput(); err != nil {
		t.Fatalf("build stile: %v: %s", err, out)
	}
	host, port, _ := strings.Cut(redisServer.Get(t).Addr(), ":")
	script := func(text string, env ...string) (string, error) {
		cmd := exec.Command("bash", "-e", "-c", fmt.Sprintf("redis-cli() { command redis-cli -h %s -p %s \"$@\"; }\n%s", host, port, text))
		cmd.Dir = dir
		cmd.Env = append(os.Environ(), append(env, "PATH="+dir+":"+os.Getenv("PATH"), "STILE_URL=redis://"+host+":"+port)...)
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	run := func(text string, env ...string) {
		t.Helper()
		if out, err := script(text, env...); err != nil {
			t.Errorf("%s%v: %s", text, err, out)
		}
	}
	balance := func() string {
		t.Helper()
		out, err := script("sqlite3 bank.db 'SELECT balance FROM accounts'; redis-cli GET '{bank}42'")
		if err != nil {
			t.Fatal(err, out)
		}
		return strings.Join(strings.Fields(out), " ")
	}
	run("sqlite3 bank.db 'CREATE TABLE accounts (id int, balance int, token int DEFAULT 0); INSERT INTO accounts (id, balance) VALUES (42, 100)'")
	run("redis-cli SET '{bank}42' 100")
	commands := blocks(t, "sh")
	if len(commands) != 2 {
		t.Fatalf("got %d blocks of commands, want two", len(commands))
	}
	run(commands[0])
	run(commands[1], "STILE_TOKEN=9223372036854775806")
	run(commands[1], "STILE_TOKEN=9223372036854775807")
	if got := balance(); got != "80 80" {
		t.Errorf("the balances are %s, want 80 80", got)
	}
	// A store without fencing tokens.
	run("sqlite3 bank.db 'UPDATE accounts SET token = 0'; redis-cli DEL '{bank}fence'")
	for _, token := range []string{"", "0"} {
		for _, command := range []string{"python3 withdraw.py", "sh withdraw.sh", commands[1]} {
			if out, err := script(command, "STILE_TOKEN="+token); err == nil {
				t.Errorf("%s with the token %q: succeeded: %s", command, token, out)
			}
		}
	}
	if got := balance(); got != "80 80" {
		t.Errorf("after writes without a token the balances are %s, want 80 80", got)
	}
	run("sqlite3 bank.db 'UPDATE accounts SET token = 8'; redis-cli SET '{bank}fence' 09223372036854775807")
	const stale = "the lock is lost"
	for _, command := range []string{"python3 withdraw.py", "sh withdraw.sh"} {
		if out, err := script(command, "STILE_TOKEN=7"); err == nil || !strings.Contains(out, stale) {
			t.Errorf("%s: got %v: %s, want a failure that says why", command, err, out)
		}
	}
	if out, err := script(commands[1], "STILE_TOKEN=9223372036854775806"); err == nil || !strings.Contains(out, stale) {
		t.Errorf("%s: got %v: %s, want an error", commands[1], err, out)
	}
	if got := balance(); got != "80 80" {
		t.Errorf("after stale writes the balances are %s, want 80 80", got)
	}
}

// The page's Go code is that of the functions below, which run here: first under a hold, and then with the
// token of an earlier holder.
func TestFencing_goCode(t *testing.T) {
	source, err := os.ReadFile("fencing_test.go")
	if err != nil {
		t.Fatal(err)
	}
	snippets := blocks(t, "go")
	if len(snippets) != 8 {
		t.Errorf("got %d snippets, want eight", len(snippets))
	}
	for _, s := range snippets {
		indented := "\t" + strings.ReplaceAll(strings.TrimSuffix(s, "\n"), "\n", "\n\t") + "\n"
		if !strings.Contains(string(source), strings.ReplaceAll(indented, "\n\t\n", "\n\n")) {
			t.Errorf("no function here contains\n%s", s)
		}
	}
	writer := writerProgram(t)
	for _, test := range []struct {
		kind string
		use  func(t *testing.T, s guards.Servers, hold guard.Hold) error
	}{
		{"sqlguard-postgres", useSQL},
		{"fileguard", useFile},
		{"fileguard", useHTTP},
		{"redisguard", useRedis},
		{"etcdguard", useEtcd},
		{"zkguard", useZooKeeper},
		{"s3guard", useS3},
	} {
		t.Run(test.kind, func(t *testing.T) {
			kind, err := guards.KindNamed(test.kind)
			if err != nil {
				t.Fatal(err)
			}
			s := serversFor(t, kind, writer)
			locks, err := testservers.Retry(func() (*storeurl.Conn, error) { return storeurl.Open(t.Context(), kind.Locks(s), nil) })
			if err != nil {
				t.Fatal(err)
			}
			defer locks.Close()
			client, err := stile.New(locks.Store, &stile.Options{TTL: longTTL})
			if err != nil {
				t.Fatal(err)
			}
			defer client.Close(context.Background())
			name := newName()
			var holds [2]*stile.Hold
			for i := range holds {
				if holds[i], err = client.Mutex(name).Lock(t.Context()); err != nil {
					t.Fatal(err)
				}
				if err := test.use(t, s, holds[i]); err != nil {
					t.Errorf("hold %d: %v", i, err)
				}
				if i == 0 {
					if err := holds[i].Release(t.Context()); err != nil {
						t.Fatal(err)
					}
				}
			}
			if err := test.use(t, s, unaware{holds[0]}); !errors.Is(err, guard.ErrStale) {
				t.Errorf("the first hold again: got %v, want ErrStale", err)
			}
		})
	}
}

// unaware is a hold whose process does not know that it has ended.
type unaware struct{ *stile.Hold }

func (unaware) Context() context.Context { return context.Background() }

func useSQL(t *testing.T, s guards.Servers, hold guard.Hold) error {
	ctx := t.Context()
	db, err := sql.Open("pgx", s.Postgres)
	if err != nil {
		return err
	}
	defer db.Close()
	fence, err := sqlguard.New(sqlguard.Postgres, "")
	if err != nil {
		return err
	}
	if _, err := db.ExecContext(ctx, fence.Schema()+"; CREATE TABLE IF NOT EXISTS accounts (id int, balance int)"); err != nil {
		return err
	}

	err = func() error {
		tx, err := db.BeginTx(ctx, nil)
		if err != nil {
			return err
		}
		defer tx.Rollback()
		if err := fence.Check(ctx, tx, "accounts", hold.Token()); err != nil {
			return err // errors.Is(err, guard.ErrStale): the lock is lost
		}
		if _, err := tx.ExecContext(ctx, "UPDATE accounts SET balance = balance - 10 WHERE id = 42"); err != nil {
			return err
		}
		return tx.Commit()
	}()
	return err
}

func useFile(t *testing.T, s guards.Servers, hold guard.Hold) error {
	ctx, err := t.Context(), error(nil)
	t.Chdir(s.Dir)

	err = fileguard.WriteFile(ctx, "page.txt", []byte("new text"), 0o644, hold.Token())
	return err
}

func useHTTP(t *testing.T, s guards.Servers, hold guard.Hold) error {
	ctx, dir, body := t.Context(), s.Dir, strings.NewReader("")
	handler := http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})

	accounts := &httpguard.Guard{
		Tokens: fileguard.Tokens{Dir: dir},                       // survives a restart
		Lock:   func(*http.Request) string { return "accounts" }, // the lock that a request needs
	}
	server := httptest.NewServer(accounts.Wrap(handler))
	defer server.Close()

	req, err := http.NewRequestWithContext(ctx, http.MethodPost, server.URL, body)
	if err != nil {
		return err
	}
	httpguard.SetHeaders(req.Header, "accounts", hold.Token())
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	return httpguard.CheckResponse(resp) // matches guard.ErrStale if the lock is lost
}

func useRedis(t *testing.T, s guards.Servers, hold guard.Hold) error {
	ctx := t.Context()
	client, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{s.Redis}, DisableCache: true})
	if err != nil {
		return err
	}
	defer client.Close()
	if hold.EntryKey() != "" {
		t.Errorf("a hold on Redis has the entry key %q, want none", hold.EntryKey())
	}

	withdraw := redisguard.NewScript("return redis.call('DECRBY', KEYS[1], ARGV[1])")
	balance, err := withdraw.Exec(ctx, client, "{bank}fence", hold.Token(), []string{"{bank}42"}, []string{"10"}).AsInt64()
	if err == nil && balance >= 0 {
		t.Errorf("the balance is %d, want less than nothing", balance)
	}
	return err
}

func useEtcd(t *testing.T, s guards.Servers, hold guard.Hold) error {
	ctx := t.Context()
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{s.Etcd}, Logger: zap.NewNop()})
	if err != nil {
		return err
	}
	defer client.Close()

	_, err = etcdguard.Do(ctx, client, hold, "bank/fence", clientv3.OpPut("bank/42", "90"))
	return err
}

func useZooKeeper(t *testing.T, s guards.Servers, hold guard.Hold) error {
	ctx, acl := t.Context(), zk.WorldACL(zk.PermAll)
	conn, _, err := zk.Connect([]string{s.ZooKeeper}, longTTL, zk.WithLogInfo(false))
	if err != nil {
		return err
	}
	defer conn.Close()
	if _, err := conn.Create("/bank-42", nil, 0, acl); err != nil && !errors.Is(err, zk.ErrNodeExists) {
		return err
	}

	_, err = zkguard.Do(ctx, conn, hold, "/bank-fence", acl, &zk.SetDataRequest{Path: "/bank-42", Data: []byte("90"), Version: -1})
	return err
}

func useS3(t *testing.T, s guards.Servers, hold guard.Hold) (err error) {
	ctx := t.Context()
	client := s3.New(s3.Options{
		BaseEndpoint: aws.String("http://" + s.S3), UsePathStyle: true, Region: "none",
		Credentials: aws.CredentialsProviderFunc(func(context.Context) (aws.Credentials, error) {
			return aws.Credentials{AccessKeyID: "key", SecretAccessKey: "secret"}, nil
		}),
	})
	if _, err := client.CreateBucket(ctx, &s3.CreateBucketInput{Bucket: aws.String("bank")}); err != nil && !strings.Contains(err.Error(), "BucketAlready") {
		return err
	}

	account := s3guard.Object{Client: client, Bucket: "bank", Key: "42"}
	err = account.Update(ctx, hold.Token(), func(body []byte) ([]byte, error) {
		return append(body, "withdrawn: 10\n"...), nil
	})
	return err
}

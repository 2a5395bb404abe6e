//go:build linux

package site

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
)

// etcd is an etcd server with default settings, apart from its log and the number of WAL files.
type etcd struct{}

func (etcd) port() int { return 2379 }

func (etcd) diskSize() string { return "512m" }

func (etcd) configure(*Server) error { return nil }

func (etcd) command(s *Server) (string, []string, error) {
	path, err := pinned("etcd")
	if err != nil {
		return "", nil, err
	}
	peer := func(s *Server) string { return "http://" + s.node.IP() + ":2380" }
	var members []string
	for _, member := range s.cluster.servers {
		members = append(members, member.name+"="+peer(member))
	}
	client := "http://" + s.Addr()
	return path, []string{
		"--name=" + s.name,
		"--data-dir=" + filepath.Join(s.dir, "data"),
		"--listen-client-urls=" + client,
		"--advertise-client-urls=" + client,
		"--listen-peer-urls=" + peer(s),
		"--initial-advertise-peer-urls=" + peer(s),
		"--initial-cluster=" + strings.Join(members, ","),
		"--log-format=console",
		"--log-level=warn",
		"--max-wals=2", // the file system is small
	}, nil
}

func (etcd) leadership(ctx context.Context, s *Server) (leadership, error) {
	var status struct {
		Header struct {
			Member uint64 `json:"member_id,string"`
			Term   uint64 `json:"raft_term,string"`
		}
		Leader uint64 `json:",string"`
	}
	if err := ask(ctx, http.MethodPost, "http://"+s.Addr()+"/v3/maintenance/status", "{}", &status); err != nil {
		return leadership{}, err
	}
	if status.Leader == 0 {
		return leadership{term: status.Header.Term}, errors.New("no leader known")
	}
	return leadership{leads: status.Leader == status.Header.Member, term: status.Header.Term}, nil
}

func (etcd) versions(ctx context.Context, s *Server) map[string]string {
	var version struct{ Etcdserver string }
	if err := ask(ctx, http.MethodGet, "http://"+s.Addr()+"/version", "", &version); err != nil {
		return nil
	}
	return map[string]string{"etcd": version.Etcdserver}
}

// ask sends a request and decodes the JSON of the reply.
func ask(ctx context.Context, method, url, body string, reply any) error {
	req, err := http.NewRequestWithContext(ctx, method, url, strings.NewReader(body))
	if err != nil {
		return err
	}
	// The next fault would cut a connection that is kept.
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	res, err := client.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return errors.New(res.Status)
	}
	return json.NewDecoder(res.Body).Decode(reply)
}

// pinned returns the path of a program that `make servers` builds: $STILE_TEST_BIN/name or, if that
// variable is not set, .bin/name in the repository that contains the working directory.
func pinned(name string) (string, error) {
	dir := os.Getenv("STILE_TEST_BIN")
	if dir == "" {
		root, err := repository()
		if err != nil {
			return "", err
		}
		dir = filepath.Join(root, ".bin")
	}
	path := filepath.Join(dir, name)
	if info, err := os.Stat(path); err != nil || info.IsDir() {
		return "", fmt.Errorf("%w: %s: run `make servers`", ErrMissing, path)
	}
	return path, nil
}

func repository() (string, error) {
	start, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for dir := start; ; dir = filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, "go.work")); err == nil {
			return dir, nil
		}
		if dir == filepath.Dir(dir) {
			return "", fmt.Errorf("%w: %s is not in the repository; set STILE_TEST_BIN to the directory of the server programs",
				ErrMissing, start)
		}
	}
}

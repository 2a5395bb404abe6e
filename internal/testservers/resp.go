package testservers

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"time"
)

// A Reply is a reply of a Redis server. Its methods are named like those of rueidis, the client
// that the Redis stores use.
type Reply struct {
	kind byte // as in the protocol: '+', '-', ':', '$' or '*'; 0 for nil
	text string
	list []Reply
}

// errNil reports a nil reply.
var errNil = errors.New("the reply is nil")

func (r Reply) unexpected(want string) error {
	return fmt.Errorf("the reply %q %v is not %s", r.text, r.list, want)
}

// ToString returns the string of a string reply.
func (r Reply) ToString() (string, error) {
	if r.kind != '+' && r.kind != '$' {
		return "", r.unexpected("a string")
	}
	return r.text, nil
}

// AsInt64 returns the number of an integer reply or of a bulk string that contains one.
func (r Reply) AsInt64() (int64, error) {
	if r.kind != ':' && r.kind != '$' {
		return 0, r.unexpected("a number")
	}
	return strconv.ParseInt(r.text, 10, 64)
}

// ToArray returns the elements of an array reply.
func (r Reply) ToArray() ([]Reply, error) {
	if r.kind != '*' {
		return nil, r.unexpected("an array")
	}
	return r.list, nil
}

// AsStrSlice returns the elements of an array of strings or numbers.
func (r Reply) AsStrSlice() ([]string, error) {
	if r.kind != '*' {
		return nil, r.unexpected("an array")
	}
	all := make([]string, 0, len(r.list))
	for _, e := range r.list {
		if e.kind == '*' {
			return nil, r.unexpected("an array of strings")
		}
		all = append(all, e.text)
	}
	return all, nil
}

// AsStrMap returns an array of alternating names and values as a map.
func (r Reply) AsStrMap() (map[string]string, error) {
	all, err := r.AsStrSlice()
	if err != nil || len(all)%2 != 0 {
		return nil, errors.Join(err, r.unexpected("an array of names and values"))
	}
	m := make(map[string]string)
	for i := 0; i < len(all); i += 2 {
		m[all[i]] = all[i+1]
	}
	return m, nil
}

// AsIntMap returns an array of alternating names and numbers as a map.
func (r Reply) AsIntMap() (map[string]int64, error) {
	all, err := r.AsStrMap()
	if err != nil {
		return nil, err
	}
	m := make(map[string]int64)
	for name, text := range all {
		if m[name], err = strconv.ParseInt(text, 10, 64); err != nil {
			return nil, err
		}
	}
	return m, nil
}

// A replyError is an error reply of the server.
type replyError string

func (r replyError) Error() string { return string(r) }

// respConn is a connection to a Redis server. Commands must not overlap.
type respConn struct {
	net.Conn
	in *bufio.Reader
}

// dialRESP connects to a unix socket as the given user, who needs no password, or as the default
// user if user is empty.
func dialRESP(socket, user string, deadline time.Time) (*respConn, error) {
	dialer := net.Dialer{Deadline: deadline}
	conn, err := dialer.Dial("unix", socket)
	if err != nil {
		return nil, err
	}
	c := &respConn{Conn: conn, in: bufio.NewReader(conn)}
	if user == "" {
		return c, nil
	}
	if _, err := c.do(deadline, "AUTH", user, "any"); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return c, nil
}

// do runs a command. After an error other than a [replyError] or errNil the connection is unusable.
func (c *respConn) do(deadline time.Time, words ...string) (Reply, error) {
	if err := c.SetDeadline(deadline); err != nil {
		return Reply{}, err
	}
	var request strings.Builder
	fmt.Fprintf(&request, "*%d\r\n", len(words))
	for _, w := range words {
		fmt.Fprintf(&request, "$%d\r\n%s\r\n", len(w), w)
	}
	if _, err := io.WriteString(c, request.String()); err != nil {
		return Reply{}, err
	}
	reply, err := c.read()
	switch {
	case err != nil:
		return Reply{}, err
	case reply.kind == '-':
		return Reply{}, replyError(reply.text)
	case reply.kind == 0:
		return Reply{}, errNil
	}
	return reply, nil
}

// read reads one reply. The reply or its elements may be errors or nil.
func (c *respConn) read() (Reply, error) {
	head, err := c.in.ReadString('\n')
	if err != nil {
		return Reply{}, err
	}
	head = strings.TrimSuffix(head, "\r\n")
	if head == "" {
		return Reply{}, errors.New("an empty reply")
	}
	r := Reply{kind: head[0], text: head[1:]}
	if r.kind != '$' && r.kind != '*' {
		return r, nil
	}
	n, err := strconv.Atoi(r.text)
	if err != nil {
		return Reply{}, err
	}
	if n < 0 {
		return Reply{}, nil
	}
	if r.text = ""; r.kind == '$' {
		text := make([]byte, n+len("\r\n"))
		_, err := io.ReadFull(c.in, text)
		r.text = string(text[:n])
		return r, err
	}
	for range n {
		e, err := c.read()
		if err != nil {
			return Reply{}, err
		}
		r.list = append(r.list, e)
	}
	return r, nil
}

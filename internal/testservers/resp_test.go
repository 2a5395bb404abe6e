package testservers

import (
	"bufio"
	"reflect"
	"strings"
	"testing"
	"time"
)

func TestRespConn_read(t *testing.T) {
	str := func(text string) Reply { return Reply{kind: '$', text: text} }
	for _, c := range []struct {
		in   string
		want Reply
	}{
		{"+OK\r\n", Reply{kind: '+', text: "OK"}},
		{"-ERR no\r\n", Reply{kind: '-', text: "ERR no"}},
		{":-7\r\n", Reply{kind: ':', text: "-7"}},
		{"$0\r\n\r\n", str("")},
		{"$4\r\na\r\nb\r\n", str("a\r\nb")},
		{"$-1\r\n", Reply{}},
		{"*-1\r\n", Reply{}},
		{"*0\r\n", Reply{kind: '*'}},
		{"*3\r\n$1\r\na\r\n*1\r\n:1\r\n$-1\r\n", Reply{kind: '*', list: []Reply{
			str("a"), {kind: '*', list: []Reply{{kind: ':', text: "1"}}}, {},
		}}},
	} {
		conn := respConn{in: bufio.NewReader(strings.NewReader(c.in + "+next\r\n"))}
		if got, err := conn.read(); err != nil || !reflect.DeepEqual(got, c.want) {
			t.Errorf("%q: got %+v, %v; want %+v", c.in, got, err, c.want)
		}
		if next, err := conn.read(); err != nil || next.text != "next" {
			t.Errorf("after %q: got %+v, %v; want the next reply", c.in, next, err)
		}
	}
	for _, in := range []string{"", "\r\n", "$x\r\n", "$4\r\nab", "*2\r\n:1\r\n"} {
		conn := respConn{in: bufio.NewReader(strings.NewReader(in))}
		if got, err := conn.read(); err == nil {
			t.Errorf("%q: got %+v, want an error", in, got)
		}
	}
}

func TestRedis_replies(t *testing.T) {
	t.Parallel()
	r := StartRedis(t)
	r.Do("SET", "text", "a\r\nb")
	r.Do("HSET", "hash", "one", "1", "two", "2")
	if text, err := r.Do("GET", "text").ToString(); err != nil || text != "a\r\nb" {
		t.Errorf("GET: got %q, %v", text, err)
	}
	if m, err := r.Do("HGETALL", "hash").AsIntMap(); err != nil || !reflect.DeepEqual(m, map[string]int64{"one": 1, "two": 2}) {
		t.Errorf("HGETALL: got %v, %v", m, err)
	}
	if _, err := r.Do("GET", "text").AsInt64(); err == nil {
		t.Error("AsInt64 of a text: got no error")
	}
	if _, err := r.Do("HGETALL", "hash").ToString(); err == nil {
		t.Error("ToString of a hash: got no error")
	}
	if _, err := r.do("GET", "nothing"); err == nil || err.Error() != "the reply is nil" {
		t.Errorf("GET of a missing key: got %v, want a nil reply", err)
	}
	if _, err := r.do("INCR", "text"); err == nil || !strings.Contains(err.Error(), "not an integer") {
		t.Errorf("INCR of a text: got %v, want the server's error", err)
	}
}

// A command waits for a paused server and fails when the server is killed.
func TestRedis_doWhilePausedAndKilled(t *testing.T) {
	t.Parallel()
	r := StartRedis(t)
	r.Do("PING")
	r.Pause()
	replied := make(chan error, 1)
	go func() {
		_, err := r.do("PING")
		replied <- err
	}()
	select {
	case err := <-replied:
		t.Errorf("a paused server replied: %v", err)
	case <-time.After(quietPeriod):
	}
	r.Resume()
	if err := <-replied; err != nil {
		t.Errorf("after the pause: %v", err)
	}
	r.Pause()
	go func() {
		_, err := r.do("PING")
		replied <- err
	}()
	r.Kill()
	if err := <-replied; err == nil {
		t.Error("a killed server replied")
	}
}

package zkstore

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"
)

// scripted is a connection to a server that sends prepared output, in pieces of the given sizes,
// and then closes it. It records what was written to it.
type scripted struct {
	net.Conn // nil, because nothing else is used

	output  []byte
	pieces  []byte // size of each piece minus one, repeated; empty for one piece
	turn    int
	written bytes.Buffer
}

func (s *scripted) Read(p []byte) (int, error) {
	if len(s.output) == 0 {
		return 0, io.EOF
	}
	n := len(s.output)
	if len(s.pieces) > 0 {
		n = 1 + int(s.pieces[s.turn%len(s.pieces)])
		s.turn++
	}
	n = copy(p, s.output[:min(n, len(s.output))])
	s.output = s.output[n:]
	return n, nil
}

func (s *scripted) Write(p []byte) (int, error)      { return s.written.Write(p) }
func (s *scripted) SetDeadline(time.Time) error      { return nil }
func (s *scripted) SetReadDeadline(time.Time) error  { return nil }
func (s *scripted) SetWriteDeadline(time.Time) error { return nil }
func (s *scripted) Close() error                     { return nil }
func (s *scripted) RemoteAddr() net.Addr             { return &net.TCPAddr{} }

// connTo returns a serverConn to a scripted server.
func connTo(t testing.TB, s *scripted, auth ...Auth) *serverConn {
	t.Helper()
	st, err := New([]string{"scripted"}, &Options{Auth: auth})
	if err != nil {
		t.Fatal(err)
	}
	return &serverConn{Conn: s, transport: newTransport(st, 10*time.Second, true), address: "scripted", r: bufio.NewReaderSize(s, 16<<10)}
}

// frames puts a length before each body.
func frames(bodies ...[]byte) (all []byte) {
	for _, b := range bodies {
		all = appendBytes(all, b)
	}
	return all
}

// handshakeReply is the body of a server's reply to the request for a session.
func handshakeReply(timeout time.Duration, session int64) []byte {
	b := binary.BigEndian.AppendUint32(nil, 0)
	b = binary.BigEndian.AppendUint32(b, uint32(int32(timeout/time.Millisecond)))
	b = binary.BigEndian.AppendUint64(b, uint64(session))
	return append(appendBytes(b, make([]byte, 16)), 0)
}

// answer is the body of a reply.
func answer(xid, code int32, body ...byte) []byte {
	b := binary.BigEndian.AppendUint32(nil, uint32(xid))
	b = binary.BigEndian.AppendUint64(b, 77)
	b = binary.BigEndian.AppendUint32(b, uint32(code))
	return append(b, body...)
}

// creation is the body of a reply to a create2, after the header.
func creation(path string, czxid, owner int64) []byte {
	b := appendBytes(nil, []byte(path))
	b = binary.BigEndian.AppendUint64(b, uint64(czxid))
	b = append(b, make([]byte, 8+8+8+4+4+4)...)
	b = binary.BigEndian.AppendUint64(b, uint64(owner))
	return append(b, make([]byte, 4+4+8)...)
}

// request is a frame that a client sends.
func request(xid, op int32, body ...byte) []byte {
	b := binary.BigEndian.AppendUint32(nil, uint32(xid))
	b = binary.BigEndian.AppendUint32(b, uint32(op))
	return frames(append(b, body...))
}

// readAll reads from a serverConn frame by frame, as go-zookeeper does, until that fails.
func readAll(w *serverConn) ([]byte, error) {
	var got bytes.Buffer
	for {
		if _, err := io.CopyN(&got, w, 4); err != nil {
			return got.Bytes(), err
		}
		body := int64(binary.BigEndian.Uint32(got.Bytes()[got.Len()-4:]))
		if _, err := io.CopyN(&got, w, body); err != nil {
			return got.Bytes(), err
		}
	}
}

func TestServerConn_passesRepliesUnchanged(t *testing.T) {
	const path = "/a/_c_x-lock-"
	sent := frames(
		handshakeReply(10*time.Second, 5),
		answer(-2, 0),                              // to a ping
		answer(-1, 0, creation(path, 1, 2)...),     // an event
		answer(7, 0, creation(path+"0", 12, 5)...), // to the request
		answer(7, 0, creation(path+"1", 13, 6)...), // a second one, to no request
		answer(0, -101),
		answer(8, 0, make([]byte, 100<<10)...),
		answer(-8, 0), answer(-4, -115), answer(1<<31-1, 0),
	)
	for size := range 40 {
		s := &scripted{output: slices.Clone(sent), pieces: []byte{byte(size)}}
		w := connTo(t, s)
		b, forget := w.transport.registerCreate(path)
		defer forget()
		w.addPending(7, b)
		got, err := readAll(w)
		if !bytes.Equal(got, sent) || !errors.Is(err, io.EOF) {
			t.Fatalf("pieces of %d bytes: got %d of %d bytes, then %v", size+1, len(got), len(sent), err)
		}
		select {
		case st := <-b.stats:
			if st != (stat{czxid: 12, owner: 5}) {
				t.Errorf("pieces of %d bytes: got %+v for the created node", size+1, st)
			}
		default:
			t.Errorf("pieces of %d bytes: got nothing for the created node", size+1)
		}
	}
}

// The library would panic on these, or continue at the wrong byte.
func TestServerConn_invalidFrame(t *testing.T) {
	for what, length := range map[string]uint32{
		"zero length": 0, "shorter than a header": replyHeader - 1, "negative length": 1<<32 - 1, "most negative length": 1 << 31,
	} {
		sent := append(frames(handshakeReply(10*time.Second, 5), answer(-2, 0)), binary.BigEndian.AppendUint32(nil, length)...)
		sent = append(sent, answer(7, 0, make([]byte, 100)...)...)
		w := connTo(t, &scripted{output: slices.Clone(sent)})
		b, _ := w.transport.registerCreate("/a")
		w.addPending(7, b)
		got, err := readAll(w)
		if err == nil || errors.Is(err, io.EOF) || len(got) > len(frames(handshakeReply(10*time.Second, 5), answer(-2, 0))) {
			t.Errorf("%s: got %d bytes, then %v", what, len(got), err)
		}
	}
}

func TestServerConn_invalidHandshakeReply(t *testing.T) {
	cut := handshakeReply(10*time.Second, 5)[:20]
	binary.BigEndian.PutUint32(cut[16:], 16)
	for what, sent := range map[string][]byte{
		"nothing":          frames(nil),
		"too little":       frames(make([]byte, 15)),
		"too much":         frames(make([]byte, maxHandshakeReply+1)),
		"another protocol": []byte("HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n"),
		"a TTL of zero":    frames(handshakeReply(0, 5)),
		"a negative TTL":   frames(handshakeReply(-time.Second, 5)),
		"no password":      frames(cut),
	} {
		got, err := readAll(connTo(t, &scripted{output: sent}))
		if len(got) > 0 || !errors.Is(err, errNotZooKeeper) {
			t.Errorf("%s: got %d bytes, then %v", what, len(got), err)
		}
	}
	expired := frames(handshakeReply(0, 0)) // a valid reply
	if got, err := readAll(connTo(t, &scripted{output: slices.Clone(expired)})); !bytes.Equal(got, expired) {
		t.Errorf("end of a session: got %d bytes, then %v", len(got), err)
	}
}

func TestServerConn_authenticatesFirst(t *testing.T) {
	auth := []Auth{{"digest", "ann:secret"}, {"digest", "bob:secret"}}
	sent := frames(handshakeReply(10*time.Second, 5), answer(xidAuth, 0), answer(xidAuth, 0), answer(-2, 0))
	s := &scripted{output: sent, pieces: []byte{6}}
	w := connTo(t, s, auth...)
	got, err := readAll(w)
	if want := frames(handshakeReply(10*time.Second, 5), answer(-2, 0)); !bytes.Equal(got, want) || !errors.Is(err, io.EOF) {
		t.Errorf("got %d bytes, want %d, then %v", len(got), len(want), err)
	}
	for _, a := range auth {
		if !bytes.Contains(s.written.Bytes(), []byte(a.Credentials)) {
			t.Errorf("%q was not sent", a.Credentials)
		}
	}

	w = connTo(t, &scripted{output: frames(handshakeReply(10*time.Second, 5), answer(xidAuth, -115))}, auth...)
	got, err = readAll(w)
	if len(got) > 0 || !errors.Is(err, zk.ErrAuthFailed) || strings.Contains(err.Error(), "secret") {
		t.Errorf("rejected credentials: got %d bytes, then %v", len(got), err)
	}
}

func TestServerConn_rewritesRequests(t *testing.T) {
	const path, mark = "/a/_c_x-lock-", "/" + watchMark
	create := func(op int32, path string, flags byte) []byte {
		b := appendBytes(appendBytes(nil, []byte(path)), []byte("data"))
		return request(7, op, append(b, 0, 0, 0, 0, 0, 0, 0, flags)...)
	}
	read := func(op int32, path string, watch byte) []byte {
		return request(7, op, append(appendBytes(nil, []byte(path)), watch)...)
	}
	remove := func(path string) []byte {
		return request(7, opDelete, append(appendBytes(nil, []byte(path)), 0xff, 0xff, 0xff, 0xff)...)
	}
	setWatches := func(paths ...string) []byte {
		b := append([]byte{0x7f}, bytes.Repeat([]byte{0xff}, 7)...) // newer than any change
		b = append(b, 0, 0, 0, byte(len(paths)))
		for _, path := range paths {
			b = appendBytes(b, []byte(path))
		}
		return request(7, opSetWatches, append(b, 0, 0, 0, 0, 0, 0, 0, 0)...)
	}
	for what, tt := range map[string]struct {
		frame, want []byte // want is nil if the frame must not change
		before      bool   // before the handshake
	}{
		"an entry's creation":                          {frame: create(opCreate, path, 3), want: create(opCreate2, path, 3)},
		"another node's creation":                      {frame: create(opCreate, "/b", 3)},
		"a directory's creation":                       {frame: create(opCreate, "/b", zk.FlagContainer), want: create(opCreateContainer, "/b", 4)},
		"a read with a watch":                          {frame: read(opGetData, "/a/b"+mark, 0), want: read(opGetData, "/a/b", 1)},
		"a listing with a watch":                       {frame: read(opGetChildren2, "/a"+mark, 0), want: read(opGetChildren2, "/a", 1)},
		"a listing of the root with a watch":           {frame: read(opGetChildren2, mark, 0), want: read(opGetChildren2, "/", 1)},
		"an existence check with a watch":              {frame: read(opExists, "/a"+mark, 0), want: read(opExists, "/a", 1)},
		"a plain read":                                 {frame: read(opGetData, "/a/b", 0)},
		"a mark that is not last":                      {frame: read(opGetData, mark+"/b", 0)},
		"a mark that is not an element":                {frame: read(opGetData, "/a"+watchMark, 0)},
		"a deletion":                                   {frame: remove("/a" + mark)},
		"a deletion for one watch":                     {frame: remove("/a/b" + pathEnd), want: setWatches("/a/b")},
		"a deletion for several watches":               {frame: remove("/a" + pathEnd + "/b/c" + pathEnd), want: setWatches("/a", "/b/c")},
		"a deletion without a path":                    {frame: remove("/a" + pathEnd)[:12]},
		"a deletion with half of a path":               {frame: remove("/a" + pathEnd)[:18]},
		"a read that ends like a deletion for watches": {frame: read(opGetData, "/a"+pathEnd, 0)},
		"a path shorter than its length":               {frame: read(opGetData, "/a"+mark, 0)[:20]},
		"a path without a flag":                        {frame: read(opGetData, "/a"+mark, 0)[:16]},
		"a ping":                                       {frame: request(-2, 11)},
		"a part of a frame":                            {frame: create(opCreate, path, 3)[:11]},
		"a creation without a path":                    {frame: create(opCreate, path, 3)[:12]},
		"a creation with half of a path":               {frame: create(opCreate, path, 3)[:20]},
		"the request for a session":                    {frame: create(opCreate, path, 3), before: true},
		"nothing":                                      {},
	} {
		s := &scripted{}
		w := connTo(t, s)
		w.established = !tt.before
		b, _ := w.transport.registerCreate(path)
		own := slices.Clone(tt.frame)
		n, err := w.Write(own)
		want := tt.want
		if want == nil {
			want = tt.frame
		}
		if err != nil || n != len(tt.frame) || !bytes.Equal(s.written.Bytes(), want) || !bytes.Equal(own, tt.frame) {
			t.Errorf("%s: got %d, %v; %q was sent, and the client's buffer is %q", what, n, err, s.written.Bytes(), own)
		}
		sent := false
		select {
		case <-b.sent:
			sent = true
		default:
		}
		if sent != (what == "an entry's creation") {
			t.Errorf("%s: treated as the entry's creation: %v", what, sent)
		}
	}
}

func FuzzServerConn_Read(f *testing.F) {
	const path = "/a/_c_x-lock-"
	all := frames(handshakeReply(10*time.Second, 5), answer(xidAuth, 0), answer(7, 0, creation(path, 12, 5)...), answer(-1, 0), answer(8, -101))
	f.Add(all, []byte{0}, true)
	f.Add(all, []byte{}, false)
	f.Add(all[:len(all)-1], []byte{3, 20}, true)
	f.Add(frames(handshakeReply(0, 0)), []byte{255}, true)
	f.Fuzz(func(t *testing.T, sent, pieces []byte, authenticated bool) {
		var auth []Auth
		if authenticated {
			auth = []Auth{{"digest", "ann:secret"}}
		}
		w := connTo(t, &scripted{output: slices.Clone(sent), pieces: pieces}, auth...)
		for xid := range int32(10) {
			w.addPending(xid, pendingCreate{stats: make(chan stat, 1)})
		}
		got, err := readAll(w)
		whole, part := passing(sent, authenticated)
		if !bytes.HasPrefix(got, whole) || !bytes.HasPrefix(append(whole, part...), got) {
			t.Fatalf("got %x of %x, want %x and any part of %x", got, sent, whole, part)
		}
		if err == nil {
			t.Fatal("readAll returned no error")
		}
	})
}

// passing returns what a client should receive of a server's output: whole frames, and the part of
// a frame at the end.
func passing(sent []byte, authenticated bool) (whole, part []byte) {
	cut := func(smallest, largest int) (frame []byte, ok bool) {
		if len(sent) < 4 {
			return nil, false
		}
		n := int(int32(binary.BigEndian.Uint32(sent)))
		if n < smallest || n > largest {
			sent = nil // nor what follows
			return nil, false
		}
		if len(sent) < 4+n {
			return nil, false
		}
		frame, sent = sent[:4+n:4+n], sent[4+n:]
		return frame, true
	}
	first, ok := cut(0, maxHandshakeReply)
	if !ok {
		return nil, nil
	}
	session, _, ok := parseHandshakeReply(first[4:])
	if !ok {
		return nil, nil
	}
	if authenticated && session != 0 {
		reply, ok := cut(replyHeader, maxHandshakeReply)
		if !ok || !bytes.Equal(reply[4+12:4+16], make([]byte, 4)) {
			return nil, nil
		}
	}
	for whole = first; ; {
		frame, ok := cut(replyHeader, 1<<31-1)
		if !ok {
			return whole, sent
		}
		whole = append(whole, frame...)
	}
}

func FuzzServerConn_Write(f *testing.F) {
	const path = "/a/_c_x-lock-"
	f.Add(request(7, opCreate, creation(path, 0, 0)...), path, true)
	f.Add(request(7, opCreate, creation(path, 0, 0)...), path, false)
	f.Add(request(7, opCreate, append(appendBytes(nil, []byte("/a")), 0, 0, 0, 4)...), path, true)
	f.Add(request(7, opGetChildren2, append(appendBytes(nil, []byte("/"+watchMark)), 0)...), path, true)
	f.Add(request(7, opGetData, append(appendBytes(nil, []byte("/a/b/"+watchMark)), 0)...), path, true)
	f.Add(request(7, opDelete, append(appendBytes(nil, []byte("/a"+pathEnd+"/b"+pathEnd)), 0, 0, 0, 1)...), path, true)
	f.Add(request(-2, 11), "", true)
	f.Add(request(9, opClose), path, true)
	f.Fuzz(func(t *testing.T, sent []byte, path string, established bool) {
		s := &scripted{}
		w := connTo(t, s)
		w.established = established
		w.transport.registerCreate(path)
		own := slices.Clone(sent)
		n, err := w.Write(own)
		if err != nil || n != len(sent) || !bytes.Equal(own, sent) {
			t.Fatalf("got %d, %v, and the client's buffer changed to %x from %x", n, err, own, sent)
		}
		want := sent
		if established && len(sent) >= requestHeader {
			want = slices.Concat(sent[:8], translation(sent[8:], path))
			if len(want) != len(sent) { // then the length is corrected
				binary.BigEndian.PutUint32(want, uint32(len(want)-4))
			}
		}
		if !bytes.Equal(s.written.Bytes(), want) {
			t.Fatalf("got %x, want %x", s.written.Bytes(), want)
		}
	})
}

// translation returns what an operation and the rest of its request must become, if an entry is
// created at path.
func translation(sent []byte, path string) []byte {
	op, rest := sent[3], sent[4:]
	switch {
	case !bytes.Equal(sent[:3], []byte{0, 0, 0}):
	case op == opCreate && bytes.HasPrefix(rest, appendBytes(nil, []byte(path))):
		return append([]byte{0, 0, 0, opCreate2}, rest...)
	case op == opCreate && bytes.HasSuffix(sent, []byte{0, 0, 0, zk.FlagContainer}):
		return append([]byte{0, 0, 0, opCreateContainer}, rest...)
	case (op == opExists || op == opGetData || op == opGetChildren2) && len(rest) > 4:
		marked := rest[4 : len(rest)-1]
		if short, ok := strings.CutSuffix(string(marked), "/"+watchMark); ok && bytes.HasPrefix(rest, appendBytes(nil, marked)) {
			if short == "" {
				short = "/"
			}
			return slices.Concat(sent[:4], appendBytes(nil, []byte(short)), []byte{1})
		}
	case op == opDelete && len(rest) >= 8:
		paths, ok := strings.CutSuffix(string(rest[4:len(rest)-4]), pathEnd)
		if !ok || !bytes.Equal(rest[:len(rest)-4], appendBytes(nil, rest[4:len(rest)-4])) {
			return sent
		}
		all := strings.Split(paths, pathEnd)
		b := append([]byte{0, 0, 0, opSetWatches, 0x7f}, bytes.Repeat([]byte{0xff}, 7)...)
		b = binary.BigEndian.AppendUint32(b, uint32(len(all)))
		for _, path := range all {
			b = appendBytes(b, []byte(path))
		}
		return append(b, make([]byte, 8)...)
	}
	return sent
}

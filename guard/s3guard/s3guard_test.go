package s3guard_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/aws/retry"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"
	"github.com/aws/smithy-go"
	"github.com/johannesboyne/gofakes3"
	"github.com/johannesboyne/gofakes3/backend/s3mem"

	"github.com/stilelock/stile/guard"
	"github.com/stilelock/stile/guard/guardtest"
	"github.com/stilelock/stile/guard/s3guard"
)

const bucket = "site"

// A service is a fake of S3 with an empty bucket.
type service struct{ server *httptest.Server }

func newService(t *testing.T) service {
	t.Helper()
	backend := s3mem.New()
	if err := backend.CreateBucket(bucket); err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(gofakes3.New(backend, gofakes3.WithLogger(gofakes3.DiscardLog())).Server())
	t.Cleanup(server.Close)
	return service{server}
}

// A doer sends requests, or does something else with them.
type doer func(*http.Request) (*http.Response, error)

func (d doer) Do(r *http.Request) (*http.Response, error) { return d(r) }

// client returns a client that sends its requests with do, or with nil to the service. It makes several
// attempts, as by default, but without delays.
func (s service) client(do doer, options ...func(*s3.Options)) *s3.Client {
	if do == nil {
		do = s.do
	}
	return s3.New(s3.Options{
		BaseEndpoint: new(s.server.URL),
		UsePathStyle: true,
		Region:       "us-east-1",
		Credentials: aws.CredentialsProviderFunc(func(context.Context) (aws.Credentials, error) {
			return aws.Credentials{AccessKeyID: "key", SecretAccessKey: "secret"}, nil
		}),
		HTTPClient: do,
		Retryer: retry.NewStandard(func(o *retry.StandardOptions) {
			o.Backoff = retry.BackoffDelayerFunc(func(int, error) (time.Duration, error) { return 0, nil })
		}),
	}, options...)
}

func (s service) do(r *http.Request) (*http.Response, error) { return s.server.Client().Do(r) }

// object returns an object for a client that sends its requests with do.
func (s service) object(do doer) s3guard.Object {
	return s3guard.Object{Client: s.client(do), Bucket: bucket, Key: "dir/index.json"}
}

// beforePut returns a doer that calls f once, before the first write.
func (s service) beforePut(f func()) doer {
	var once sync.Once
	return func(r *http.Request) (*http.Response, error) {
		if r.Method == http.MethodPut {
			once.Do(f)
		}
		return s.do(r)
	}
}

// losingReply returns a doer that loses the reply to the first write. Before, it calls f.
func (s service) losingReply(t *testing.T, f func()) doer {
	var once sync.Once
	return func(r *http.Request) (*http.Response, error) {
		reply, err := s.do(r)
		if r.Method == http.MethodPut {
			once.Do(func() {
				if err != nil || reply.StatusCode != http.StatusOK {
					t.Errorf("the first write: got %v and %v, want it accepted", reply, err)
					return
				}
				reply.Body.Close()
				f()
				reply, err = nil, errors.New("connection reset by peer")
			})
		}
		return reply, err
	}
}

// raw returns everything of the object that a write could change.
func raw(t *testing.T, o s3guard.Object) string {
	t.Helper()
	out, err := o.Client.GetObject(t.Context(), &s3.GetObjectInput{Bucket: &o.Bucket, Key: &o.Key})
	if _, ok := errors.AsType[*types.NoSuchKey](err); ok {
		return ""
	}
	if err != nil {
		t.Fatal(err)
	}
	defer out.Body.Close()
	content, err := io.ReadAll(out.Body)
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("%s %v %s", *out.ETag, out.Metadata, content)
}

func mustPut(t *testing.T, o s3guard.Object, token uint64, body string) {
	t.Helper()
	if err := o.Put(t.Context(), token, []byte(body)); err != nil {
		t.Errorf("token %d: got %v, want it accepted", token, err)
	}
}

func checkGet(t *testing.T, o s3guard.Object, token uint64, body string) {
	t.Helper()
	got, seen, err := o.Get(t.Context())
	if err != nil || string(got) != body || seen != token {
		t.Errorf("Get: got %q, token %d, %v, want %q, token %d", got, seen, err, body, token)
	}
}

// checkStale checks that err is the refusal of token because of newest.
func checkStale(t *testing.T, err error, resource string, token, newest uint64) {
	t.Helper()
	refused, ok := errors.AsType[*guard.StaleError](err)
	if !ok || !errors.Is(err, guard.ErrStale) || *refused != (guard.StaleError{Resource: resource, Token: token, Newest: newest}) {
		t.Errorf("token %d: got %v, want it refused because of %d", token, err, newest)
	}
}

// checkText checks that err has all parts in its text.
func checkText(t *testing.T, err error, parts ...string) {
	t.Helper()
	for _, part := range parts {
		if err == nil || !strings.Contains(err.Error(), part) {
			t.Errorf("got %v, want %q in it", err, part)
		}
	}
}

func TestObject_PutAndGet(t *testing.T) {
	t.Parallel()
	o := newService(t).object(nil)
	var last string
	for i, body := range []string{
		"one", "", "two\nlines\n", "\x00\xff\r\n", "stile-fence 00000000000000000009 AAAAAAAAAAAAAAAAAAAAAAAAAA\nthree",
		strings.Repeat("long ", 1<<18), "one", "one",
	} {
		token := uint64(5 + i/2) // each token twice
		mustPut(t, o, token, body)
		checkGet(t, o, token, body)
		now := raw(t, o)
		if now == last {
			t.Errorf("two writes left the same object %q", now)
		}
		last = now
	}
	mustPut(t, o, 1<<63-1, "last")
	checkGet(t, o, 1<<63-1, "last")
}

func TestObject_format(t *testing.T) {
	t.Parallel()
	o := newService(t).object(nil)
	metadata := map[string]string{"color": "red"}
	err := o.Put(t.Context(), 2048, []byte("<p>"), func(in *s3.PutObjectInput) {
		in.ContentType, in.Metadata = new("text/html"), metadata
		in.Key, in.Body, in.IfNoneMatch = new("other"), strings.NewReader("other"), nil // have no effect
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(metadata) != 1 {
		t.Errorf("the caller's metadata was changed: %v", metadata)
	}
	out, err := o.Client.GetObject(t.Context(), &s3.GetObjectInput{Bucket: &o.Bucket, Key: &o.Key})
	if err != nil {
		t.Fatal(err)
	}
	defer out.Body.Close()
	content, err := io.ReadAll(out.Body)
	if err != nil {
		t.Fatal(err)
	}
	fence := out.Metadata["stile-fence"]
	if want := "00000000000000002048 "; !strings.HasPrefix(fence, want) || len(fence) != len(want)+26 {
		t.Errorf("got metadata %q, want %q and 26 letters or digits", fence, want)
	}
	if want := "stile-fence " + fence + "\n<p>"; string(content) != want || len(content) != 60+3 {
		t.Errorf("got content %q, want %q", content, want)
	}
	if *out.ContentType != "text/html" || out.Metadata["color"] != "red" {
		t.Errorf("got content type %s and metadata %v, want those of the options", *out.ContentType, out.Metadata)
	}
}

func TestObject_smallerToken(t *testing.T) {
	t.Parallel()
	o := newService(t).object(nil)
	mustPut(t, o, 10, "ten")
	before := raw(t, o)
	for _, token := range []uint64{9, 1} {
		checkStale(t, o.Put(t.Context(), token, []byte("stale")), "s3://site/dir/index.json", token, 10)
		err := o.Update(t.Context(), token, func([]byte) ([]byte, error) {
			t.Error("change was called with a stale token")
			return nil, nil
		})
		checkStale(t, err, "s3://site/dir/index.json", token, 10)
	}
	if after := raw(t, o); after != before {
		t.Errorf("a stale token changed the object from %q to %q", before, after)
	}
}

func TestObject_badToken(t *testing.T) {
	t.Parallel()
	s := newService(t)
	o := s.object(func(r *http.Request) (*http.Response, error) {
		t.Errorf("got a request: %s %s", r.Method, r.URL)
		return s.do(r)
	})
	for _, token := range []uint64{0, 1 << 63} {
		if err := o.Put(t.Context(), token, nil); !errors.Is(err, guard.ErrBadToken) {
			t.Errorf("Put with token %d: got %v, want ErrBadToken", token, err)
		}
		if err := o.Update(t.Context(), token, nil); !errors.Is(err, guard.ErrBadToken) {
			t.Errorf("Update with token %d: got %v, want ErrBadToken", token, err)
		}
	}
}

// An option cannot replace the condition of a write.
func TestObject_conditionOfOption(t *testing.T) {
	t.Parallel()
	s := newService(t)
	o := s.object(s.do)
	mustPut(t, o, 5, "five")
	paused := s.object(s.beforePut(func() { mustPut(t, o, 6, "six") }))
	err := paused.Put(t.Context(), 5, []byte("stale"), func(in *s3.PutObjectInput) { in.IfMatch, in.IfNoneMatch = nil, nil })
	checkStale(t, err, o.String(), 5, 6)
	checkGet(t, o, 6, "six")
}

// A holder is paused between its comparison and its write, and a later holder writes.
func TestObject_pausedHolder(t *testing.T) {
	t.Parallel()
	for _, exists := range []bool{true, false} {
		t.Run(fmt.Sprint("exists=", exists), func(t *testing.T) {
			t.Parallel()
			s := newService(t)
			later := s.object(nil)
			if exists {
				mustPut(t, later, 4, "before")
			}
			var before string
			paused := s.object(s.beforePut(func() {
				mustPut(t, later, 6, "later")
				before = raw(t, later)
			}))
			checkStale(t, paused.Put(t.Context(), 5, []byte("stale")), paused.String(), 5, 6)
			if after := raw(t, later); after != before {
				t.Errorf("the paused holder changed the object from %q to %q", before, after)
			}
		})
	}
}

// The body that a stale holder has read comes back. Without the first line, the object would have the same
// ETag again, and the stale holder's write would be accepted.
func TestObject_sameBodyAgain(t *testing.T) {
	t.Parallel()
	s := newService(t)
	later := s.object(nil)
	mustPut(t, later, 5, "same")
	paused := s.object(s.beforePut(func() {
		mustPut(t, later, 6, "other")
		mustPut(t, later, 7, "same")
	}))
	checkStale(t, paused.Put(t.Context(), 5, []byte("stale")), paused.String(), 5, 7)
	checkGet(t, later, 7, "same")
}

// A request of a Put that failed arrives later. The object has the same body and the same token as when the
// request was sent.
func TestObject_delayedRequest(t *testing.T) {
	t.Parallel()
	s := newService(t)
	o := s.object(nil)
	mustPut(t, o, 5, "same")
	var delayed *http.Request
	var body []byte
	slow := s.object(func(r *http.Request) (*http.Response, error) {
		if r.Method != http.MethodPut {
			return s.do(r)
		}
		var err error
		if body, err = io.ReadAll(r.Body); err != nil {
			t.Error(err)
		}
		delayed = r.Clone(context.WithoutCancel(r.Context()))
		return nil, errors.New("connection reset by peer")
	})
	if err := slow.Put(t.Context(), 5, []byte("delayed")); err == nil || errors.Is(err, guard.ErrStale) {
		t.Errorf("got %v, want an unknown outcome", err)
	}
	mustPut(t, o, 5, "other")
	mustPut(t, o, 5, "same")
	delayed.Body = io.NopCloser(bytes.NewReader(body))
	reply, err := s.do(delayed)
	if err != nil {
		t.Fatal(err)
	}
	reply.Body.Close()
	if reply.StatusCode != http.StatusPreconditionFailed {
		t.Errorf("the delayed request: got %s, want it refused", reply.Status)
	}
	checkGet(t, o, 5, "same")
}

// The reply to a write is lost. The client repeats the request, which is refused.
func TestObject_lostReply(t *testing.T) {
	t.Parallel()
	for _, exists := range []bool{true, false} {
		t.Run(fmt.Sprint("exists=", exists), func(t *testing.T) {
			t.Parallel()
			s := newService(t)
			o := s.object(nil)
			if exists {
				mustPut(t, o, 4, "before")
			}
			losing, writes := s.losingReply(t, func() {}), 0
			mustPut(t, s.object(func(r *http.Request) (*http.Response, error) {
				if r.Method == http.MethodPut {
					writes++
				}
				return losing(r)
			}), 5, "written")
			checkGet(t, o, 5, "written")
			if writes != 2 {
				t.Errorf("got %d requests to write, want the one that was accepted and the one that was refused", writes)
			}
		})
	}
	t.Run("Update", func(t *testing.T) {
		t.Parallel()
		s := newService(t)
		calls := 0
		err := s.object(s.losingReply(t, func() {})).Update(t.Context(), 5, func(body []byte) ([]byte, error) {
			calls++
			return append(body, "+"...), nil
		})
		if err != nil || calls != 1 {
			t.Errorf("got %v after %d calls, want 1 call", err, calls)
		}
		checkGet(t, s.object(nil), 5, "+")
	})
	t.Run("later holder", func(t *testing.T) {
		t.Parallel()
		s := newService(t)
		later := s.object(nil)
		o := s.object(s.losingReply(t, func() { mustPut(t, later, 6, "later") }))
		checkStale(t, o.Put(t.Context(), 5, []byte("written")), o.String(), 5, 6)
		checkGet(t, later, 6, "later")
	})
	t.Run("client without retries", func(t *testing.T) {
		t.Parallel()
		s := newService(t)
		o := s.object(nil)
		o.Client = s.client(s.losingReply(t, func() {}), func(options *s3.Options) { options.Retryer = aws.NopRetryer{} })
		err := o.Put(t.Context(), 5, []byte("written"))
		checkText(t, err, `"s3://site/dir/index.json"`, "token 5", "connection reset by peer")
		checkGet(t, o, 5, "written")
		mustPut(t, o, 5, "again")
		checkGet(t, o, 5, "again")
	})
}

// The object was removed between the comparison and the write.
func TestObject_removed(t *testing.T) {
	t.Parallel()
	s := newService(t)
	other := s.object(nil)
	mustPut(t, other, 5, "before")
	o := s.object(s.beforePut(func() {
		if _, err := s.client(nil).DeleteObject(t.Context(), &s3.DeleteObjectInput{Bucket: &other.Bucket, Key: &other.Key}); err != nil {
			t.Error(err)
		}
	}))
	mustPut(t, o, 5, "new")
	checkGet(t, other, 5, "new")
}

func TestObject_somebodyElses(t *testing.T) {
	t.Parallel()
	const fence = "00000000000000000005 4PJ6VQ2KXHRBTMZ3ZWS7GCOYNE"
	for _, c := range []struct {
		name, fence, content string
		inContent            bool // Put does not read the content
	}{
		{"plain", "", "text", false},
		{"empty", "", "", false},
		{"no metadata", "", "stile-fence " + fence + "\ntext", false},
		{"no first line", fence, "text", true},
		{"other first line", fence, "stile-fence 00000000000000000004 4PJ6VQ2KXHRBTMZ3ZWS7GCOYNE\ntext", true},
		{"half a first line", fence, "stile-fence " + fence, true},
		{"token 0", "00000000000000000000 4PJ6VQ2KXHRBTMZ3ZWS7GCOYNE", "", false},
		{"token too large", "09223372036854775808 4PJ6VQ2KXHRBTMZ3ZWS7GCOYNE", "", false},
		{"token too short", "5 4PJ6VQ2KXHRBTMZ3ZWS7GCOYNE", "", false},
		{"token with sign", "+0000000000000000005 4PJ6VQ2KXHRBTMZ3ZWS7GCOYNE", "", false},
		{"no name", "00000000000000000005", "", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			o := newService(t).object(nil)
			in := &s3.PutObjectInput{Bucket: &o.Bucket, Key: &o.Key, Body: strings.NewReader(c.content), Metadata: map[string]string{}}
			if c.fence != "" {
				in.Metadata["stile-fence"] = c.fence
			}
			if _, err := o.Client.PutObject(t.Context(), in); err != nil {
				t.Fatal(err)
			}
			before := raw(t, o)
			_, _, err := o.Get(t.Context())
			checkText(t, err, `"s3://site/dir/index.json"`, "was not written with this guard", "move the object away")
			err = o.Update(t.Context(), 9, func([]byte) ([]byte, error) {
				t.Error("change was called with somebody else's object")
				return nil, nil
			})
			checkText(t, err, `"s3://site/dir/index.json"`, "was not written with this guard", "move the object away")
			if !c.inContent {
				err := o.Put(t.Context(), 9, nil)
				checkText(t, err, `"s3://site/dir/index.json"`, "was not written with this guard", "move the object away")
			}
			if after := raw(t, o); after != before {
				t.Errorf("the object was changed from %q to %q", before, after)
			}
		})
	}
}

func TestObject_missing(t *testing.T) {
	t.Parallel()
	o := newService(t).object(nil)
	_, _, err := o.Get(t.Context())
	if _, ok := errors.AsType[*types.NoSuchKey](err); !ok {
		t.Errorf("Get without an object: got %v, want NoSuchKey", err)
	}
	checkText(t, err, `"s3://site/dir/index.json"`)
	o.Bucket = "missing"
	checkText(t, o.Put(t.Context(), 5, nil), `"s3://missing/dir/index.json"`, "NoSuchBucket")
}

func TestObject_Update(t *testing.T) {
	t.Parallel()
	o := newService(t).object(nil)
	update := func(token uint64, want, next []byte, fail error) {
		t.Helper()
		err := o.Update(t.Context(), token, func(body []byte) ([]byte, error) {
			if !bytes.Equal(body, want) || (body == nil) != (want == nil) {
				t.Errorf("token %d: got body %#v, want %#v", token, body, want)
			}
			return next, fail
		})
		if err != fail {
			t.Errorf("token %d: got %v, want %v", token, err, fail)
		}
	}
	failure := errors.New("failure")
	update(4, nil, []byte("discarded"), failure)
	if now := raw(t, o); now != "" {
		t.Errorf("an Update whose change failed created an object: %q", now)
	}
	update(5, nil, nil, nil)
	update(5, []byte{}, []byte("one"), nil)
	update(6, []byte("one"), []byte("discarded"), failure)
	update(5, []byte("one"), []byte("one"), nil) // so the failed one did not raise the token
	update(6, []byte("one"), []byte("one"), nil)
	checkGet(t, o, 6, "one")
	checkStale(t, o.Put(t.Context(), 5, nil), o.String(), 5, 6)
}

// A stale holder writes before the first write of a later holder, which has already read the object. Nothing
// of it is lost.
func TestObject_UpdateSeesEveryWrite(t *testing.T) {
	t.Parallel()
	s := newService(t)
	stale := s.object(nil)
	mustPut(t, stale, 5, "a")
	later := s.object(s.beforePut(func() { mustPut(t, stale, 5, "ab") }))
	err := later.Update(t.Context(), 6, func(body []byte) ([]byte, error) { return append(body, 'c'), nil })
	if err != nil {
		t.Error(err)
	}
	checkGet(t, stale, 6, "abc")
}

// Writers with increasing tokens write at the same time. The tokens in the object never decrease.
func TestObject_manyWriters(t *testing.T) {
	t.Parallel()
	o := newService(t).object(nil)
	var writers, readers sync.WaitGroup
	var next, accepted atomic.Uint64 // accepted is the largest token that was accepted before now
	done := make(chan struct{})
	for range 4 {
		writers.Go(func() {
			for i := range 25 {
				before := accepted.Load()
				token := next.Add(1)
				if i%3 == 0 && token > 3 {
					token -= 3
				}
				switch err := o.Put(t.Context(), token, []byte(strconv.FormatUint(token, 10))); {
				case err == nil && token < before:
					t.Errorf("token %d was accepted after %d", token, before)
				case err != nil && !errors.Is(err, guard.ErrStale):
					t.Error(err)
				case err == nil:
					for old := accepted.Load(); token > old && !accepted.CompareAndSwap(old, token); old = accepted.Load() {
					}
				}
			}
		})
	}
	readers.Go(func() {
		for last := uint64(0); ; {
			select {
			case <-done:
				return
			default:
			}
			least := accepted.Load()
			body, token, err := o.Get(t.Context())
			if _, none := errors.AsType[*types.NoSuchKey](err); none && last == 0 {
				continue
			}
			if err != nil || token < last || token < least || string(body) != strconv.FormatUint(token, 10) {
				t.Errorf("got token %d, body %q, %v, want a token of at least %d, and its body", token, body, err, max(last, least))
			}
			last = token
		}
	})
	writers.Wait()
	close(done)
	readers.Wait()
}

// Goroutines of one holder change the object at the same time. No change is lost or made twice.
func TestObject_manyUpdates(t *testing.T) {
	t.Parallel()
	o := newService(t).object(nil)
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 5 {
				if err := o.Update(t.Context(), 5, func(body []byte) ([]byte, error) { return append(body, '+'), nil }); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	checkGet(t, o, 5, strings.Repeat("+", 20))
}

// A scripted client answers with its functions, and counts its requests. Every write must have a condition.
type scripted struct {
	s3guard.Client
	head  func() (*s3.HeadObjectOutput, error)
	put   func() error
	heads int
	puts  int
}

func (c *scripted) HeadObject(context.Context, *s3.HeadObjectInput, ...func(*s3.Options)) (*s3.HeadObjectOutput, error) {
	c.heads++
	return c.head()
}

func (c *scripted) PutObject(_ context.Context, in *s3.PutObjectInput, _ ...func(*s3.Options)) (*s3.PutObjectOutput, error) {
	c.puts++
	if (in.IfMatch == nil) == (in.IfNoneMatch == nil) {
		return nil, errors.New("the request must have one condition")
	}
	return &s3.PutObjectOutput{}, c.put()
}

func apiError(code string) error { return &smithy.GenericAPIError{Code: code, Message: "scripted"} }

func existing() (*s3.HeadObjectOutput, error) {
	return &s3.HeadObjectOutput{
		ETag: new(`"1"`), Metadata: map[string]string{"stile-fence": "00000000000000000004 4PJ6VQ2KXHRBTMZ3ZWS7GCOYNE"},
	}, nil
}

// A write is repeated as long as it is refused because of its condition.
func TestObject_manyConflicts(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		codes := []string{"PreconditionFailed", "ConditionalRequestConflict", "OperationAborted", "NoSuchKey"}
		client := &scripted{head: existing}
		client.put = func() error {
			if client.puts <= 100 {
				return apiError(codes[client.puts%len(codes)])
			}
			return nil
		}
		start := time.Now()
		if err := (s3guard.Object{Client: client, Bucket: bucket, Key: "key"}).Put(t.Context(), 5, nil); err != nil {
			t.Error(err)
		}
		if client.heads != 101 || client.puts != 101 {
			t.Errorf("got %d reads and %d writes, want 101", client.heads, client.puts)
		}
		if took := time.Since(start); took < 30*time.Second || took > 100*time.Second {
			t.Errorf("100 conflicts took %v, want between half a second and a second for each", took)
		}
	})
}

func TestObject_contextEnds(t *testing.T) {
	t.Parallel()
	t.Run("between attempts", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			client := &scripted{head: existing, put: func() error { return apiError("PreconditionFailed") }}
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			err := (s3guard.Object{Client: client, Bucket: bucket, Key: "key"}).Put(ctx, 5, nil)
			if !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("got %v, want the context's error", err)
			}
			checkText(t, err, `"s3://site/key"`, "token 5", "PreconditionFailed")
		})
	})
	t.Run("before", func(t *testing.T) {
		t.Parallel()
		o := newService(t).object(nil)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := o.Put(ctx, 5, nil); !errors.Is(err, context.Canceled) {
			t.Errorf("got %v, want the context's error", err)
		}
		if now := raw(t, o); now != "" {
			t.Errorf("an object was created: %q", now)
		}
	})
	t.Run("during the write", func(t *testing.T) {
		t.Parallel()
		s := newService(t)
		ctx, cancel := context.WithCancel(t.Context())
		err := s.object(s.beforePut(cancel)).Put(ctx, 5, nil)
		if !errors.Is(err, context.Canceled) || errors.Is(err, guard.ErrStale) {
			t.Errorf("got %v, want the context's error", err)
		}
	})
}

func TestObject_otherErrors(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name       string
		head       func() (*s3.HeadObjectOutput, error)
		put        error
		text       string
		wantWrites int
	}{
		{"no right to read", func() (*s3.HeadObjectOutput, error) { return nil, apiError("Forbidden") }, nil, "Forbidden", 0},
		{"no right to write", existing, apiError("AccessDenied"), "AccessDenied", 1},
		{"no conditions", existing, apiError("NotImplemented"), "NotImplemented", 1},
		{"no ETag", func() (*s3.HeadObjectOutput, error) {
			out, err := existing()
			out.ETag = nil
			return out, err
		}, nil, "no ETag", 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			client := &scripted{head: c.head, put: func() error { return c.put }}
			err := s3guard.Object{Client: client, Bucket: bucket, Key: "key"}.Put(t.Context(), 5, nil)
			checkText(t, err, `guard: "s3://site/key"`, "token 5", c.text)
			if client.heads != 1 || client.puts != c.wantWrites {
				t.Errorf("got %d reads and %d writes, want 1 and %d", client.heads, client.puts, c.wantWrites)
			}
		})
	}
}

func TestObject_Check(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name    string
		ignored []string
	}{
		{"conditional writes", nil},
		{"no conditions", []string{"If-Match", "If-None-Match"}},
		{"no If-Match", []string{"If-Match"}},
		{"no If-None-Match", []string{"If-None-Match"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s := newService(t)
			o := s.object(func(r *http.Request) (*http.Response, error) {
				for _, name := range c.ignored {
					r.Header.Del(name)
				}
				return s.do(r)
			})
			for range 2 { // the object does not exist, and does
				if err := o.Check(t.Context()); c.ignored == nil && err != nil {
					t.Errorf("got %v, want nil", err)
				} else if c.ignored != nil {
					checkText(t, err, `"s3://site/dir/index.json"`, "cannot protect")
				}
			}
		})
	}
	t.Run("refuses conditions", func(t *testing.T) {
		t.Parallel()
		client := &scripted{
			head: func() (*s3.HeadObjectOutput, error) { return nil, apiError("NotFound") },
			put:  func() error { return apiError("NotImplemented") },
		}
		checkText(t, s3guard.Object{Client: client, Bucket: bucket, Key: "key"}.Check(t.Context()), "NotImplemented")
	})
	t.Run("key in use", func(t *testing.T) {
		t.Parallel()
		o := newService(t).object(nil)
		mustPut(t, o, 5, "used")
		checkStale(t, o.Check(t.Context()), o.String(), 1, 5)
		checkGet(t, o, 5, "used")
	})
}

func TestTokens(t *testing.T) {
	t.Parallel()
	guardtest.Tokens(t, s3guard.Tokens{Client: newService(t).client(nil), Bucket: bucket, Prefix: "fences/"})
}

func TestTokens_requests(t *testing.T) {
	t.Parallel()
	s := newService(t)
	var requests []string
	client := s.client(func(r *http.Request) (*http.Response, error) {
		requests = append(requests, r.Method)
		return s.do(r)
	})
	tokens := s3guard.Tokens{Client: client, Bucket: bucket}
	for _, step := range []struct {
		token uint64
		want  []string
	}{{5, []string{"HEAD", "PUT"}}, {5, []string{"HEAD"}}, {6, []string{"HEAD", "PUT"}}, {5, []string{"HEAD"}}} {
		requests = nil
		if err := tokens.Raise(t.Context(), "orders", step.token); err != nil && !errors.Is(err, guard.ErrStale) {
			t.Error(err)
		}
		if !slices.Equal(requests, step.want) {
			t.Errorf("token %d: got requests %q, want %q", step.token, requests, step.want)
		}
	}
	const key = "1c168adb00d208e42f93314529f1fa9c0427eb63233ceda95a5db52b7012a719" // of "orders"
	checkGet(t, s3guard.Object{Client: client, Bucket: bucket, Key: key}, 6, "orders")
}

func TestTokens_errorsNameTheResource(t *testing.T) {
	t.Parallel()
	client := &scripted{head: func() (*s3.HeadObjectOutput, error) { return &s3.HeadObjectOutput{ETag: new(`"1"`)}, nil }}
	err := s3guard.Tokens{Client: client, Bucket: bucket, Prefix: "fences/"}.Raise(t.Context(), "orders", 5)
	checkText(t, err, `guard: "orders"`, "s3://site/fences/", "token 5", "was not written with this guard")
}

// Package s3guard is a guard for objects in Amazon S3, and in compatible services with conditional writes.
//
// An [Object] begins with a line that has the token of its last writer. A write reads the token, compares
// it, and replaces the object under the condition that it is still the one that was read. So the comparison
// and the write are one step: if the write was accepted, no larger token was seen before, and no smaller one
// is accepted after.
//
//	object := s3guard.Object{Client: client, Bucket: "site", Key: "index.json"}
//	err := object.Update(ctx, hold.Token(), func(body []byte) ([]byte, error) {
//		return addPage(body, page)
//	})
//
// It is an order guard for exclusive holds, with the limits that package guard names. The lock may be in any
// store that has fencing tokens. Every writer has to use the guard. A bucket policy can help: the condition
// keys s3:if-match and s3:if-none-match can refuse writes without conditions.
//
// # The first line
//
// The first line has 60 bytes, with the newline. Readers that do not use [Object.Get] must skip it:
//
//	stile-fence 00000000000000002048 4PJ6VQ2KXHRBTMZ3ZWS7GCOYNE
//
// It consists of the token, with 20 digits, and a random name of the write, with 26 letters and digits. The
// object's metadata has both too, as x-amz-meta-stile-fence.
//
// The condition compares ETags. The ETag of an object is usually the MD5 of its content, without its
// metadata. With the token in the metadata alone, a stale holder's write would be accepted after later
// holders had changed the content and changed it back. With the first line, no two writes have the same
// content. So a request that is delayed, or that was repeated, has no effect after any other write.
//
// # Limits
//
// Whatever removes the object, or replaces it by an older version, makes the guard forget its token: a
// lifecycle rule, a restored backup, a failover to a replica. The guard itself never removes an object. Write
// through one bucket only: replication to another one is asynchronous.
//
// The service must read what was last written, and must compare the conditions with it. Amazon S3 does. Some
// services ignore the conditions, so that the guard does not protect: use [Object.Check] once, before the
// first write to a service. Only S3's protocol was tested, with a fake of it, not a service.
//
// A user needs s3:GetObject, s3:PutObject and s3:ListBucket. Without the last one S3 does not tell that an
// object does not exist. A body is kept in memory, and is sent with one PutObject, which limits it to 5 GB.
package s3guard

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"maps"
	mathrand "math/rand/v2"
	"strconv"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/smithy-go"

	"github.com/stilelock/stile/guard"
)

// A Client is what the guard needs of an [*s3.Client], which is one. To send more with all requests, such
// as a customer's encryption key or the expected owner of the bucket, wrap one.
type Client interface {
	HeadObject(ctx context.Context, in *s3.HeadObjectInput, options ...func(*s3.Options)) (*s3.HeadObjectOutput, error)
	GetObject(ctx context.Context, in *s3.GetObjectInput, options ...func(*s3.Options)) (*s3.GetObjectOutput, error)
	PutObject(ctx context.Context, in *s3.PutObjectInput, options ...func(*s3.Options)) (*s3.PutObjectOutput, error)
}

// An Object is a guarded object, which need not exist. Its methods are safe for concurrent use if the client
// is.
type Object struct {
	Client      Client
	Bucket, Key string
}

// String returns the object's URL, as in s3://bucket/key.
func (o Object) String() string { return "s3://" + o.Bucket + "/" + o.Key }

// Get returns the body, which is the content after the first line, and the token of its writer. If there is
// no object, the error wraps the SDK's *types.NoSuchKey. If the object was not written with this guard, the
// error says so.
//
// Get compares no token. A stale holder may change the object between Get and the first write of a later
// holder: to change what was read, use [Object.Update].
func (o Object) Get(ctx context.Context) (body []byte, token uint64, err error) {
	found, err := o.get(ctx)
	if err != nil {
		return nil, 0, fmt.Errorf("guard: %q: %w", o, err)
	}
	return found.body, found.fence.token, nil
}

// Put replaces the body if the token is not stale, or creates the object. Options change the request: they
// may set the content type, further metadata and so on, but not the content's length or checksums, which
// include the first line. Metadata and settings of the former object are not kept.
//
// If the token is stale, the error is a [*guard.StaleError], whose Resource is the object's URL. If no hold
// can have the token, the error matches [guard.ErrBadToken], and no request is sent. If there is an object
// that was not written with this guard, the error says so. In all three cases nothing was written, with one
// exception. If a reply was lost, the client repeats the request. A StaleError can then mean that the body was
// written, and that a later holder has already replaced it.
//
// If others write at the same time, Put compares again and repeats its write, until it is accepted or ctx
// ends. If a reply was lost and the client has repeated the request, Put recognizes its own write in the
// object, and returns nil.
//
// After any other error, such as a lost connection or the end of ctx, the body may have been written, and may
// also be written later, but not after another write to the object. The caller may repeat Put.
func (o Object) Put(ctx context.Context, token uint64, body []byte, options ...func(*s3.PutObjectInput)) error {
	return o.write(ctx, o.String(), token, o.head, func(state) ([]byte, error) { return body, nil }, options)
}

// Update replaces the body by what change returns for it, if the token is not stale. The body is nil if there
// is no object. No other write comes between, not even a stale holder's. An Update that changes nothing
// raises the token: after it the object is closed for earlier holders.
//
// If others write at the same time, change is called again, with the new body. If it returns an error, Update
// writes nothing and returns it. All other errors, and the options, are those of [Object.Put]. The caller may
// repeat Update after an unknown outcome only if change recognizes what it has already changed.
//
// Two goroutines of one holder must not write to the object at the same time: if a reply is lost, and the
// other goroutine has replaced what was written, change is called with the result of its first call in the
// body.
func (o Object) Update(ctx context.Context, token uint64, change func(body []byte) ([]byte, error), options ...func(*s3.PutObjectInput)) error {
	return o.write(ctx, o.String(), token, o.get, func(now state) ([]byte, error) { return change(now.body) }, options)
}

// Check returns an error if the service does not have conditional writes, or ignores the conditions. Use a key
// that nothing else uses: Check leaves an empty object there, with the token 1. An object of another program,
// or one that was written under a hold, is not changed; then Check returns an error. Check returns nil if the
// service has accepted and refused the right writes. It cannot test that comparison and write are one step in
// the service.
func (o Object) Check(ctx context.Context) error {
	for range 2 { // the second one replaces an object
		if err := o.Put(ctx, 1, nil); err != nil {
			return err
		}
	}
	for _, etag := range []string{"", `"00000000000000000000000000000000"`} {
		err := o.put(ctx, newFence(1), etag, nil, nil)
		if err == nil {
			return fmt.Errorf("guard: %q: the service accepted a write although its condition was not met, so s3guard cannot protect objects there: use another service, or another guard", o)
		}
		if !refused(err) {
			return fmt.Errorf("guard: %q: check of conditional writes: %w", o, err)
		}
	}
	return nil
}

// write replaces the object by what content returns for it. It calls read and content again whenever
// somebody else has changed the object in between. The resource is the name for errors.
func (o Object) write(ctx context.Context, resource string, token uint64, read func(context.Context) (state, error),
	content func(state) ([]byte, error), options []func(*s3.PutObjectInput),
) error {
	if err := guard.CheckToken(resource, token); err != nil {
		return err
	}
	failed := func(err error) error {
		return fmt.Errorf("guard: %q: write %s with token %d: %w", resource, o, token, err)
	}
	own := newFence(token)
	for wait := firstWait; ; wait = min(2*wait, longestWait) {
		now, err := read(ctx)
		switch {
		case absent(err):
			now = state{}
		case err != nil:
			return failed(err)
		case now.fence == own:
			return nil // an earlier request was accepted, and its reply was lost
		case now.fence.token > token:
			return &guard.StaleError{Resource: resource, Token: token, Newest: now.fence.token}
		}
		body, err := content(now)
		if err != nil {
			return err
		}
		err = o.put(ctx, own, now.etag, body, options)
		if err == nil {
			return nil
		}
		if !refused(err) {
			return failed(err)
		}
		select {
		case <-ctx.Done():
			return failed(fmt.Errorf("%w, and others changed the object before each attempt: %w", ctx.Err(), err))
		case <-time.After(wait/2 + mathrand.N(wait/2)):
		}
	}
}

// The time between attempts grows, and is random, so that many writers do not always meet.
const (
	firstWait   = 10 * time.Millisecond
	longestWait = time.Second
)

// A state is an object, or that there is none.
type state struct {
	etag  string // "" if there is no object
	fence fence
	body  []byte // set by get
}

func (o Object) head(ctx context.Context) (state, error) {
	out, err := o.Client.HeadObject(ctx, &s3.HeadObjectInput{Bucket: &o.Bucket, Key: &o.Key})
	if err != nil {
		return state{}, err
	}
	return newState(out.ETag, out.Metadata)
}

func (o Object) get(ctx context.Context) (state, error) {
	out, err := o.Client.GetObject(ctx, &s3.GetObjectInput{Bucket: &o.Bucket, Key: &o.Key})
	if err != nil {
		return state{}, err
	}
	defer out.Body.Close()
	now, err := newState(out.ETag, out.Metadata)
	if err != nil {
		return state{}, err
	}
	content, err := io.ReadAll(out.Body)
	if err != nil {
		return state{}, err
	}
	body, ok := bytes.CutPrefix(content, []byte(now.fence.line()))
	if !ok {
		return state{}, fmt.Errorf("%w: its first line is not that of its metadata; %s", errForeign, advice)
	}
	now.body = body
	return now, nil
}

var errForeign = errors.New("the object was not written with this guard")

const advice = "while nobody writes, move the object away, and write its body with Put"

// newState returns the state of an object, without its body.
func newState(etag *string, metadata map[string]string) (state, error) {
	fence, ok := parseFence(metadata[metadataKey])
	switch {
	case !ok:
		return state{}, fmt.Errorf("%w: its metadata has no token; %s", errForeign, advice)
	case etag == nil || *etag == "": // without one, the write would have no condition
		return state{}, errors.New("the service returned no ETag, so s3guard cannot protect objects there")
	}
	return state{etag: *etag, fence: fence}, nil
}

// put sends one request: to replace the object with the ETag, or with "" to create one.
func (o Object) put(ctx context.Context, f fence, etag string, body []byte, options []func(*s3.PutObjectInput)) error {
	in := &s3.PutObjectInput{}
	for _, option := range options {
		option(in)
	}
	in.Bucket, in.Key = &o.Bucket, &o.Key
	in.Body = bytes.NewReader(append([]byte(f.line()), body...))
	in.Metadata = maps.Clone(in.Metadata)
	if in.Metadata == nil {
		in.Metadata = make(map[string]string)
	}
	in.Metadata[metadataKey] = f.String()
	in.IfMatch, in.IfNoneMatch = &etag, nil
	if etag == "" {
		in.IfMatch, in.IfNoneMatch = nil, new("*")
	}
	_, err := o.Client.PutObject(ctx, in)
	return err
}

// absent reports whether there is no object. The reply to a HeadObject has no code, only the status.
func absent(err error) bool {
	code := errorCode(err)
	return code == "NoSuchKey" || code == "NotFound"
}

// refused reports whether a write was refused because of its condition. NoSuchKey means that the object was
// removed since it was read.
func refused(err error) bool {
	switch errorCode(err) {
	case "PreconditionFailed", "ConditionalRequestConflict", "OperationAborted", "NoSuchKey":
		return true
	}
	return false
}

func errorCode(err error) string {
	if failure, ok := errors.AsType[smithy.APIError](err); ok {
		return failure.ErrorCode()
	}
	return ""
}

// A fence names a write.
type fence struct {
	token uint64
	write string
}

const (
	metadataKey = "stile-fence"
	fenceLength = 20 + 1 + 26
)

func newFence(token uint64) fence { return fence{token, rand.Text()} }

func (f fence) String() string { return fmt.Sprintf("%020d %s", f.token, f.write) }

// line returns the first line of the content.
func (f fence) line() string { return "stile-fence " + f.String() + "\n" }

func parseFence(text string) (f fence, ok bool) {
	digits, write, ok := strings.Cut(text, " ")
	token, err := strconv.ParseUint(digits, 10, 64)
	f = fence{token, write}
	return f, ok && err == nil && len(text) == fenceLength && f.String() == text && guard.CheckToken("", token) == nil
}

// Tokens is a [guard.Tokens] that keeps each token in an object of its own. It is for resources outside S3;
// for those inside, use an [Object]. A larger token costs two requests, the same one costs one.
type Tokens struct {
	Client Client
	Bucket string
	// Prefix and the SHA-256 of the resource's name, in hexadecimal digits, make the key. The name itself is
	// in the body.
	Prefix string
}

var errSeen = errors.New("token was raised before")

// Raise implements [guard.Tokens]. If the object was not written with this guard, the error says so.
func (t Tokens) Raise(ctx context.Context, resource string, token uint64) error {
	o := Object{t.Client, t.Bucket, t.Prefix + fmt.Sprintf("%x", sha256.Sum256([]byte(resource)))}
	err := o.write(ctx, resource, token, o.head, func(now state) ([]byte, error) {
		if now.fence.token == token {
			return nil, errSeen
		}
		return []byte(resource), nil
	}, nil)
	if err == errSeen {
		return nil
	}
	return err
}

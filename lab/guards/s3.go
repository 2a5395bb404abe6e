package guards

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"
	"github.com/johannesboyne/gofakes3"
	"github.com/johannesboyne/gofakes3/backend/s3mem"

	"github.com/stilelock/stile/guard"
	"github.com/stilelock/stile/guard/s3guard"
)

// bucket is the bucket of the journals, and plainBucket that of what is written without the guard.
const bucket, plainBucket = "journals", "plain"

// ServeS3 serves objects in memory until ctx ends.
func ServeS3(ctx context.Context, listener net.Listener) error {
	backend := s3mem.New()
	for _, name := range []string{bucket, plainBucket} {
		if err := backend.CreateBucket(name); err != nil {
			return err
		}
	}
	handler := gofakes3.New(backend, gofakes3.WithLogger(gofakes3.DiscardLog())).Server()
	return serve(ctx, listener, handler)
}

// s3Journal is an object.
type s3Journal struct{ object s3guard.Object }

func openS3(_ context.Context, s Servers, name string) (Journal, error) {
	client := s3.New(s3.Options{
		BaseEndpoint: aws.String("http://" + s.S3),
		UsePathStyle: true,
		Region:       "none",
		Credentials: aws.CredentialsProviderFunc(func(context.Context) (aws.Credentials, error) {
			return aws.Credentials{AccessKeyID: "key", SecretAccessKey: "secret"}, nil
		}),
	})
	return s3Journal{s3guard.Object{Client: client, Bucket: bucket, Key: name}}, nil
}

func (j s3Journal) Append(ctx context.Context, hold guard.Hold) error {
	return j.object.Update(ctx, hold.Token(), func(body []byte) ([]byte, error) {
		return fmt.Appendf(body, "%d ", hold.Token()), nil
	})
}

// AppendPlain reads and writes an object that has no fence. Tokens does not return it.
func (j s3Journal) AppendPlain(ctx context.Context, token uint64) error {
	var body []byte
	out, err := j.object.Client.GetObject(ctx, &s3.GetObjectInput{Bucket: aws.String(plainBucket), Key: &j.object.Key})
	_, absent := errors.AsType[*types.NoSuchKey](err)
	switch {
	case err == nil:
		if body, err = io.ReadAll(out.Body); err != nil {
			return err
		}
	case !absent:
		return err
	}
	body = fmt.Appendf(body, "%d ", token)
	_, err = j.object.Client.PutObject(ctx, &s3.PutObjectInput{Bucket: aws.String(plainBucket), Key: &j.object.Key, Body: bytes.NewReader(body)})
	return err
}

func (j s3Journal) Tokens(ctx context.Context) ([]uint64, error) {
	body, _, err := j.object.Get(ctx)
	if _, absent := errors.AsType[*types.NoSuchKey](err); err != nil && !absent {
		return nil, err
	}
	return parseTokens(string(body))
}

func (s3Journal) Close() error { return nil }

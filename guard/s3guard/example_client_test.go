package s3guard_test

import (
	"context"
	"log"

	"github.com/aws/aws-sdk-go-v2/service/s3"

	"github.com/stilelock/stile/guard/s3guard"
)

// An ownersClient writes only to a bucket of the expected account.
type ownersClient struct {
	*s3.Client
	account string
}

func (c ownersClient) PutObject(ctx context.Context, in *s3.PutObjectInput, options ...func(*s3.Options)) (*s3.PutObjectOutput, error) {
	in.ExpectedBucketOwner = &c.account
	return c.Client.PutObject(ctx, in, options...)
}

// A program wraps an *s3.Client to send more with the requests of the guard.
func ExampleClient() {
	var owned s3guard.Client = ownersClient{s3.New(s3.Options{Region: "eu-central-1"}), "111122223333"}
	index := s3guard.Object{Client: owned, Bucket: "site", Key: "index.txt"}
	body, token, err := index.Get(context.Background())
	if err != nil {
		log.Fatal(err)
	}
	log.Printf("%d bytes, written with token %d", len(body), token)
}

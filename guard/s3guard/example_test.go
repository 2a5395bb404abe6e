package s3guard_test

import (
	"bytes"
	"errors"
	"log"

	"github.com/aws/aws-sdk-go-v2/service/s3"

	"github.com/stilelock/stile/guard"
	"github.com/stilelock/stile/guard/s3guard"
)

// Made elsewhere: a client of the service, and a hold of the lock that protects the object.
var (
	client *s3.Client
	hold   guard.Hold // a *stile.Hold
)

// An update is refused if a later holder has written to the object.
func ExampleObject() {
	index := s3guard.Object{Client: client, Bucket: "site", Key: "index.txt"}
	err := index.Update(hold.Context(), hold.Token(), func(body []byte) ([]byte, error) {
		return append(bytes.Clone(body), "page 7\n"...), nil
	})
	switch {
	case errors.Is(err, guard.ErrStale):
		log.Fatal("the lock is lost, and nothing was written: ", err)
	case err != nil:
		log.Fatal(err)
	}
}

// The token of a resource outside S3, such as a device, is kept in an object.
func ExampleTokens() {
	tokens := s3guard.Tokens{Client: client, Bucket: "site", Prefix: "fences/"}
	if err := tokens.Raise(hold.Context(), "printer", hold.Token()); err != nil {
		log.Fatal(err) // do not print
	}
}

package redisstore

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/redis/rueidis"
)

// minMajor is the oldest supported major version of Redis. Older versions wrap the errors of
// commands in a script, so that temporary errors look like permanent ones.
const minMajor = 7

var errTooOld = errors.New("the server is too old")

// checkSupported returns an error if a server version is too old. It accepts a version that cannot
// be parsed.
func checkSupported(version string) error {
	major, _, _ := strings.Cut(version, ".")
	if n, err := strconv.Atoi(major); err == nil && n < minMajor {
		return fmt.Errorf("%w: Redis %s; Stile needs %d.0 or newer", errTooOld, version, minMajor)
	}
	return nil
}

// checkVersion returns an error if the server is too old. It accepts a server, or a proxy, that
// does not report a version.
func (s *server) checkVersion(ctx context.Context) error {
	r := s.do(ctx, 0, []request{func(b rueidis.Builder) rueidis.Completed { return b.Arbitrary("HELLO").Build() }})[0]
	if r.err != nil {
		if refused(r.err) {
			return nil
		}
		return r.err
	}
	hello, err := r.AsMap()
	if err != nil {
		return nil //nolint:nilerr // see above
	}
	version := hello["version"]
	text, _ := version.ToString()
	return checkSupported(text)
}

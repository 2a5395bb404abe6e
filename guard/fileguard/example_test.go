//go:build unix

package fileguard_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"

	"github.com/stilelock/stile/guard"
	"github.com/stilelock/stile/guard/fileguard"
)

// The tokens of a resource that is no file, such as a device, are kept in files of a directory. They are not
// forgotten when the process ends.
func ExampleTokens() {
	dir, err := os.MkdirTemp("", "fences") // a program uses a directory that stays
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	ctx := context.Background()

	before := fileguard.Tokens{Dir: dir}
	if err := before.Raise(ctx, "tape", 6144); err != nil {
		log.Fatal(err)
	}
	afterRestart := fileguard.Tokens{Dir: dir}
	err = afterRestart.Raise(ctx, "tape", 4096)
	fmt.Println("stale:", errors.Is(err, guard.ErrStale))
	// Output: stale: true
}

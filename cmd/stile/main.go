// Command stile runs commands under distributed locks. It also shows, watches and breaks locks, and
// runs a lock server where there is no store yet.
package main

import (
	"context"
	"os"

	"github.com/stilelock/stile/cmd/stile/internal/cli"
)

func main() {
	os.Exit(cli.Run(context.Background(), os.Args[1:], cli.Stdio{In: os.Stdin, Out: os.Stdout, Err: os.Stderr}))
}

// Command stile takes distributed locks: it runs commands under them, and serves them where there is no store yet.
package main

import (
	"context"
	"os"

	"github.com/stilelock/stile/cmd/stile/internal/cli"
)

func main() {
	os.Exit(cli.Run(context.Background(), os.Args[1:], cli.Stdio{In: os.Stdin, Out: os.Stdout, Err: os.Stderr}))
}

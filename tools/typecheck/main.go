// Command typecheck prints the type errors in the named packages, their tests and all packages that
// they import, for the system that GOOS and GOARCH name. It generates no code, so it takes seconds
// where go build takes minutes.
package main

import (
	"fmt"
	"os"

	"golang.org/x/tools/go/packages"
)

func main() {
	const types = packages.NeedName | packages.NeedImports | packages.NeedDeps | packages.NeedTypes | packages.NeedTypesSizes
	pkgs, err := packages.Load(&packages.Config{Mode: types, Tests: true}, os.Args[1:]...)
	if err != nil {
		fmt.Fprintln(os.Stderr, "typecheck:", err)
		os.Exit(1)
	}
	if packages.PrintErrors(pkgs) > 0 {
		os.Exit(1)
	}
}

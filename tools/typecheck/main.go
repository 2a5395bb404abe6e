// Command typecheck says what does not compile of the packages named, their tests and all that they import, as far as
// types can tell: for the system that GOOS and GOARCH name. It compiles nothing, and so takes seconds where go build
// takes minutes.
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

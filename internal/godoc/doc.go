// Package godoc contains only tests. They check what pkg.go.dev shows of the packages that users import.
package godoc

// Package arrows contains only tests. They check which packages of Stile may import which others,
// directly or indirectly, and which modules a module and its users require. The rules and their
// reasons are in rules_test.go.
package arrows

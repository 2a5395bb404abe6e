// Package arrows has only tests: they check which package of Stile may use which, directly or through others, and which
// modules a module and its users need, and say why. The rules are in rules_test.go.
package arrows

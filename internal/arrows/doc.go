// Package arrows has only tests: they check which package of Stile may use which, directly or through others, and
// say why. The rules are in rules_test.go.
package arrows

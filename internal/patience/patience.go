//go:build !patient

// Package patience lengthens the time limits that would make tests of the command fail on a busy
// machine, where a working server may not answer for many seconds.
package patience

// Factor multiplies how long the command waits for servers. It is one, except for the tests of the
// command, which build it with the tag patient.
const Factor = 1

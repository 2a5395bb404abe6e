//go:build !lean

package cli

// This program has the server. It needs no other one; see program_lean.go.

func needsServer([]string) bool { return false }

func (Stdio) runServer([]string) int { panic("this program has the server") }

//go:build unix && !linux

package testservers

import "syscall"

func (p *process) pause() error  { return p.proc.Signal(syscall.SIGSTOP) }
func (p *process) resume() error { return p.proc.Signal(syscall.SIGCONT) }

//go:build !linux

package testservers

import "syscall"

func sysProcAttr() *syscall.SysProcAttr { return nil }

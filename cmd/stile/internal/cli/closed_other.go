//go:build !linux

package cli

import "os"

// onReaderGone does nothing: the next write fails if no process reads out any more.
func onReaderGone(*os.File, func()) {}

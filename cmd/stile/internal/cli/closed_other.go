//go:build !linux

package cli

import "os"

// whenUnread does nothing: the next write fails if nobody reads any more.
func whenUnread(*os.File, func()) {}

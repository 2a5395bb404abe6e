package fileguard

import "os"

// SetFlush replaces the function that writes a fence to the disk, and returns one that restores it. No call of Do may
// run meanwhile.
func SetFlush(f func(*os.File) error) (restore func()) {
	before := flush
	flush = f
	return func() { flush = before }
}

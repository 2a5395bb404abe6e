//go:build unix

package localserver

// OtherDir returns the advice for a path that is refused.
func OtherDir(path string) string { return otherDir(path) }

// RootHome returns the home directory of root.
func RootHome() string { return rootHome() }

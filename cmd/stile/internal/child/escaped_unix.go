//go:build unix && !linux

package child

// escaped returns nil: on this system nobody knows what has left the group.
func escaped(int, []string) []int { return nil }

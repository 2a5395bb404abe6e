//go:build !linux

package watchdog

import "time"

// Verb is the hidden verb of the program that makes it a watchdog.
const Verb = "watchdog"

// A Watchdog watches nothing on this system.
type Watchdog struct{}

// Start returns nil.
func Start(int, []string, time.Duration) (*Watchdog, error) { return nil, nil }

// Until does nothing.
func (w *Watchdog) Until(time.Duration) {}

// Close does nothing.
func (w *Watchdog) Close() {}

// Run returns at once.
func Run(int, []string) {}

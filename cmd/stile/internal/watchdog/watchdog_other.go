//go:build !linux

package watchdog

import "time"

// Verb is the hidden verb that makes the program a watchdog.
const Verb = "watchdog"

// A Watchdog watches nothing on this system.
type Watchdog struct{}

// Start returns nil.
func Start(Target, time.Duration) (*Watchdog, error) { return nil, nil }

// Gone returns nil.
func (w *Watchdog) Gone() <-chan struct{} { return nil }

// Until does nothing.
func (w *Watchdog) Until(time.Duration) {}

// Close does nothing.
func (w *Watchdog) Close() {}

// Run returns at once.
func Run(Release) error { return nil }

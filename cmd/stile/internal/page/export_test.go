package page

import "time"

// SetMaxConnections replaces the numbers of connections that are allowed. It must be called before Serve.
func SetMaxConnections(p *Page, proven, unproven int) {
	p.connections.maxProven, p.connections.maxUnproven = proven, unproven
}

// SetMaxUnsent replaces the number of bytes of answers that clients may have yet to take. It must be called before Serve.
func SetMaxUnsent(p *Page, n int64) { p.answers.maxBytes = n }

// The limits of an answer.
const (
	MaxEntries     = maxEntries
	MaxAnswerBytes = maxAnswerBytes
	MaxUnproven    = maxUnproven
)

// SetLongTimeouts makes a page close no connection that waits for a request. It must be called before Serve.
func SetLongTimeouts(p *Page) { p.timeouts = timeouts{header: time.Hour, idle: time.Hour} }

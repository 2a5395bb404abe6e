package lab_test

import (
	"fmt"
	"sync"
)

// A model is what a lock promises of its holds: up to limit of them at a time, or one exclusive hold, and
// tokens that exceed those of earlier conflicting holds. With a limit of one it is a mutex whose tokens
// fence or, if the tokens are seen as terms, an election; without exclusive holds it is a semaphore.
type model struct {
	limit int

	mu                        sync.Mutex
	holders                   int
	writing                   bool
	lastToken, lastWriteToken uint64
	numbers                   map[int]bool   // slot numbers in use
	lastClaim                 map[int]uint64 // largest slot token of each number
}

// enter adds a hold that is valid from now on.
func (m *model) enter(token uint64, exclusive bool) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	var err error
	switch {
	case m.writing || exclusive && m.holders > 0 || m.holders >= m.limit:
		err = fmt.Errorf("token %d, exclusive %v: held beside %d others, writer %v", token, exclusive, m.holders, m.writing)
	case exclusive && token <= m.lastToken, token <= m.lastWriteToken:
		err = fmt.Errorf("token %d, exclusive %v: the largest so far is %d, of writers %d", token, exclusive, m.lastToken, m.lastWriteToken)
	}
	m.holders++
	m.writing = m.writing || exclusive
	m.lastToken = max(m.lastToken, token)
	if exclusive {
		m.lastWriteToken = max(m.lastWriteToken, token)
	}
	return err
}

// leave removes a hold, before its release.
func (m *model) leave(exclusive bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.holders--
	if exclusive {
		m.writing = false
	}
}

// downgrade makes the exclusive hold shared.
func (m *model) downgrade() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.writing = false
}

// claim adds the slot number of a hold that has entered.
func (m *model) claim(slot int, token uint64) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.numbers == nil {
		m.numbers, m.lastClaim = make(map[int]bool), make(map[int]uint64)
	}
	var err error
	switch {
	case slot < 0 || slot >= m.limit || m.numbers[slot]:
		err = fmt.Errorf("slot number %d of %d: other holds have %v", slot, m.limit, m.numbers)
	case token <= m.lastClaim[slot]:
		err = fmt.Errorf("slot number %d, token %d: the largest so far is %d", slot, token, m.lastClaim[slot])
	}
	m.numbers[slot] = true
	m.lastClaim[slot] = max(token, m.lastClaim[slot])
	return err
}

// unclaim removes the slot number of a hold that leaves.
func (m *model) unclaim(slot int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.numbers, slot)
}

// An observerModel is what an observer of an election may see: terms never go back, and a leader that is
// seen twice has the same token.
type observerModel struct {
	mu     sync.Mutex
	last   uint64
	tokens map[string]uint64 // of each candidate
}

// see adds what the observer sees. The names of the candidates are unique.
func (m *observerModel) see(candidate string, token uint64) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.tokens == nil {
		m.tokens = make(map[string]uint64)
	}
	var err error
	if before, seen := m.tokens[candidate]; token < m.last || seen && token < before {
		err = fmt.Errorf("observed %q with token %d after token %d", candidate, token, m.last)
	}
	m.last, m.tokens[candidate] = max(m.last, token), token
	return err
}

package stile

import (
	"encoding/json"
	"fmt"
	"os"
	"os/user"
	"path/filepath"
	"time"

	"github.com/stilelock/stile/store"
)

// Owner describes a holder or waiter. Everyone who can read the store can read it: put no secrets
// in it. [store.Owner] describes the fields.
type Owner = store.Owner

// MaxOwnerBytes is the maximum size of an [Owner] as JSON, in bytes, without its fields Since, Obtained,
// Waits and Under. The owner is stored with every entry.
const MaxOwnerBytes = 8 << 10

// MaxUnder is the maximum number of locks in the field Under of an [Owner].
const MaxUnder = 16

// DefaultOwner describes this process: host, process ID, user, and the program's name. It leaves
// the arguments out, because they may be secret. What it cannot find out stays empty.
func DefaultOwner() Owner {
	o := Owner{PID: os.Getpid(), Command: filepath.Base(os.Args[0])}
	if host, err := os.Hostname(); err == nil {
		o.Host = host
	}
	if u, err := user.Current(); err == nil {
		o.User = u.Username
	}
	return o
}

func checkOwner(o Owner) error {
	if _, err := json.Marshal(o); err != nil {
		return fmt.Errorf("the owner: %w", err)
	}
	if len(o.Under) > MaxUnder {
		return fmt.Errorf("the owner: its field Under has %d locks, maximum is %d", len(o.Under), MaxUnder)
	}
	for _, held := range o.Under {
		if err := store.CheckName(held.Name); err != nil {
			return fmt.Errorf("the owner: its field Under: %w", err)
		}
	}
	// The times and waits of an accepted owner are set later. The names of locks may be long.
	o.Since, o.Obtained, o.Waits, o.Under = time.Time{}, time.Time{}, nil, nil
	if b, _ := json.Marshal(o); len(b) > MaxOwnerBytes {
		return fmt.Errorf("the owner: %d bytes of JSON, maximum is %d: shorten its labels, reason or value", len(b), MaxOwnerBytes)
	}
	return nil
}

// maxSessionBytes is more than the ID of a session has in any store.
const maxSessionBytes = 256

// canBeOurs reports whether a client of Stile can have written the owner and the session of an entry: whether they
// are within the limits of all clients. Everybody who can write to the store can write larger ones.
func canBeOurs(e *store.Entry) bool {
	o := &e.Owner
	if len(e.Session) > maxSessionBytes || len(o.Waits) > maxWaits || len(o.Under) > MaxUnder {
		return false
	}
	for _, w := range o.Waits {
		if len(w.Name) > store.MaxNameBytes {
			return false
		}
	}
	for _, held := range o.Under {
		if len(held.Name) > store.MaxNameBytes {
			return false
		}
	}
	// No text is longer than it is in JSON, and each label takes five more bytes there.
	n := len(o.Host) + len(o.User) + len(o.Command) + len(o.Reason) + len(o.Value)
	for key, value := range o.Labels {
		n += len(key) + len(value) + 5
	}
	return n <= MaxOwnerBytes
}

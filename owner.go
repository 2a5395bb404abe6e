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

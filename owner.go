package stile

import (
	"encoding/json"
	"fmt"
	"os"
	"os/user"
	"path/filepath"

	"github.com/stilelock/stile/store"
)

// Owner is who holds a lock or waits for it, readable by everyone who can read the store. Put no secrets in it.
type Owner = store.Owner

// MaxOwnerBytes is the size of the largest owner, in bytes of JSON. It is written into the store with every entry.
const MaxOwnerBytes = 8 << 10

// DefaultOwner describes this process: host, process id, user, and the name of the program without its arguments, which
// may be secret. What cannot be found out is left empty.
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
	b, err := json.Marshal(o)
	if err != nil {
		return fmt.Errorf("the owner: %w", err)
	}
	if len(b) > MaxOwnerBytes {
		return fmt.Errorf("the owner: %d bytes of JSON, maximum is %d: shorten its labels or reason", len(b), MaxOwnerBytes)
	}
	return nil
}

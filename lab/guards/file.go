package guards

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/stilelock/stile/guard"
	"github.com/stilelock/stile/guard/fileguard"
)

// fileJournal is a file with a line for each token.
type fileJournal struct{ path string }

func openFile(_ context.Context, s Servers, name string) (Journal, error) {
	return fileJournal{filepath.Join(s.Dir, name+".journal")}, nil
}

func (j fileJournal) Append(ctx context.Context, hold guard.Hold) error {
	return fileguard.Do(ctx, j.path, hold.Token(), func() error { return j.AppendPlain(ctx, hold.Token()) })
}

// AppendPlain reads and writes the whole file, so that a change between the two would be lost.
func (j fileJournal) AppendPlain(_ context.Context, token uint64) error {
	text, err := os.ReadFile(j.path)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	file, err := os.OpenFile(j.path, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = file.Write(fmt.Appendf(text, "%d\n", token))
	return errors.Join(err, file.Sync(), file.Close())
}

func (j fileJournal) Tokens(context.Context) ([]uint64, error) {
	text, err := os.ReadFile(j.path)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	return parseTokens(string(text))
}

func (fileJournal) Close() error { return nil }

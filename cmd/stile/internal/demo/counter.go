package demo

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
)

// format returns the content of the file: a decimal number, so that people can read it. It has a
// fixed number of digits, so that it stays a number even if processes write at the same time.
func format(n int) []byte { return fmt.Appendf(nil, "%010d\n", n) }

// readCounter reads the number in the file at path.
func readCounter(path string) (int, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	n, err := strconv.Atoi(strings.TrimSuffix(string(text), "\n"))
	if err != nil || len(text) != len(format(0)) {
		return 0, fmt.Errorf("%s: %q is not a number of 10 digits", path, text)
	}
	return n, nil
}

// increment adds one to the number in the file at path. It reads, adds and writes like a script,
// without any protection against concurrent calls.
func increment(path string) error {
	n, err := readCounter(path)
	if err != nil {
		return err
	}
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.Write(format(n + 1))
	return errors.Join(err, f.Close())
}

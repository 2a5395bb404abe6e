package demo

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
)

// asText is what the file contains: a decimal number, so that people can look at it. It always has as many digits: so it
// remains one even if processes write at the same time.
func asText(n int) []byte { return fmt.Appendf(nil, "%010d\n", n) }

// readCounter reads the number in the file at path.
func readCounter(path string) (int, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	n, err := strconv.Atoi(strings.TrimSuffix(string(text), "\n"))
	if err != nil || len(text) != len(asText(0)) {
		return 0, fmt.Errorf("%s: %q is not a number of 10 digits", path, text)
	}
	return n, nil
}

// increment adds one to the number in the file at path: it reads, adds and writes, as a script would, and takes no care of
// others who do the same.
func increment(path string) error {
	n, err := readCounter(path)
	if err != nil {
		return err
	}
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.Write(asText(n + 1))
	return errors.Join(err, f.Close())
}

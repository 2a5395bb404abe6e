package demo

import (
	"fmt"
	"io"
	"os"
	"strconv"
)

// The counter is a file with a decimal number, so that people can look at it. The number always has as many digits: so it
// remains one even if processes write at the same time.
const digits = 10

// setCounter writes a number into the file.
func setCounter(f io.WriterAt, n int) error {
	_, err := f.WriteAt(fmt.Appendf(nil, "%0*d\n", digits, n), 0)
	return err
}

// counterIn reads the number.
func counterIn(f io.ReaderAt) (int, error) {
	var text [digits]byte
	if _, err := f.ReadAt(text[:], 0); err != nil {
		return 0, err
	}
	return strconv.Atoi(string(text[:]))
}

// readCounter reads the number in the file at path.
func readCounter(path string) (int, error) {
	f, err := os.Open(path)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	n, err := counterIn(f)
	if err != nil {
		return 0, fmt.Errorf("%s: %w", path, err)
	}
	return n, nil
}

// increment adds one to the number in the file at path: it opens the file, reads, adds and writes, as a script would,
// and takes no care of others who do the same.
func increment(path string) error {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	n, err := counterIn(f)
	if err == nil {
		err = setCounter(f, n+1)
	}
	if e := f.Close(); err == nil {
		err = e
	}
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return nil
}

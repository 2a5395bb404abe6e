//go:build !linux

package validity

import "os"

func create() (*os.File, string, error) {
	file, err := os.CreateTemp("", "stile-validity-")
	if err != nil {
		return nil, "", err
	}
	return file, file.Name(), nil
}

func open(path string) (*os.File, error) { return os.Open(path) }

func remove(path string) { _ = os.Remove(path) }

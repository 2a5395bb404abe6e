package main

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/gzip"
	"errors"
	"io"
	"time"
)

func (p *product) tarGz(base string, program *program) ([]byte, error) {
	items, err := p.archived(base, program)
	if err != nil {
		return nil, err
	}
	tarball, err := packTar(p.time, items)
	if err != nil {
		return nil, err
	}
	return packGzip(tarball)
}

func (p *product) zip(base string, program *program) ([]byte, error) {
	items, err := p.archived(base, program)
	if err != nil {
		return nil, err
	}
	var packed bytes.Buffer
	w := zip.NewWriter(&packed)
	for _, i := range items {
		header := &zip.FileHeader{Name: i.name, Method: zip.Deflate, Modified: p.time}
		header.SetMode(i.mode)
		f, err := w.CreateHeader(header)
		if err != nil {
			return nil, err
		}
		if _, err := f.Write(i.data); err != nil {
			return nil, err
		}
	}
	err = w.Close()
	return packed.Bytes(), err
}

// packTar returns a tar archive of items. Its bytes depend on nothing else.
func packTar(modified time.Time, items []item) ([]byte, error) {
	var packed bytes.Buffer
	w := tar.NewWriter(&packed)
	for _, i := range items {
		header := &tar.Header{
			Typeflag: tar.TypeReg, Name: i.name, Size: int64(len(i.data)), Mode: int64(i.mode.Perm()),
			Uid: i.owner, Gid: i.owner, ModTime: modified, Format: tar.FormatPAX,
		}
		if i.mode.IsDir() {
			header.Typeflag, header.Name = tar.TypeDir, i.name+"/"
		}
		if err := w.WriteHeader(header); err != nil {
			return nil, err
		}
		if _, err := w.Write(i.data); err != nil {
			return nil, err
		}
	}
	err := w.Close()
	return packed.Bytes(), err
}

// packGzip compresses data, without a name and a time.
func packGzip(data []byte) ([]byte, error) {
	var packed bytes.Buffer
	w, err := gzip.NewWriterLevel(&packed, gzip.BestCompression)
	if err != nil {
		return nil, err
	}
	_, err = io.Copy(w, bytes.NewReader(data))
	err = errors.Join(err, w.Close())
	return packed.Bytes(), err
}

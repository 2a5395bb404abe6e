//go:build linux

package main

import (
	"io"
	"net"
	"testing"
)

// A reset ends the connections that are open on both sides; later ones are forwarded.
func TestProxy_reset(t *testing.T) {
	t.Parallel()
	server, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	ended := make(chan error, 2)
	go func() {
		for {
			conn, err := server.Accept()
			if err != nil {
				return
			}
			go func() {
				_, err := io.Copy(conn, conn)
				ended <- err
				_ = conn.Close()
			}()
		}
	}()
	p, err := newProxy(server.Addr().String(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer p.close()
	for range 2 {
		conn, err := net.Dial("tcp", p.addr())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if _, err := io.WriteString(conn, "echo"); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(conn, make([]byte, 4)); err != nil {
			t.Fatal(err)
		}
		p.reset()
		if _, err := conn.Read(make([]byte, 1)); err == nil || err == io.EOF {
			t.Errorf("the client's connection was not reset: %v", err)
		}
		if err := <-ended; err == nil {
			t.Error("the server's connection was not reset")
		}
	}
}

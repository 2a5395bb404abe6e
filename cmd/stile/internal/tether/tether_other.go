//go:build !linux

package tether

import (
	"errors"
	"log/slog"
)

// A Server exists on Linux only.
type Server struct{}

// New returns a server that does nothing.
func New(Leases, *slog.Logger) *Server { return &Server{} }

// Listen returns [errors.ErrUnsupported].
func (s *Server) Listen(string) error { return errors.ErrUnsupported }

// Close does nothing.
func (s *Server) Close() {}

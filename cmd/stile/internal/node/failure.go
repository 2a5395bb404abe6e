package node

import (
	"errors"
	"fmt"
	"sync"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// failure hears what etcd dies of. Where etcd would end the process, it reports why and keeps the goroutine from going
// on: what is on disk then is whole, and whoever runs the node can say what has happened and end the process.
//
// Nothing less is passed on: what etcd calls errors comes up in healthy operation too.
type failure struct {
	once sync.Once
	done chan struct{} // closed when err is set
	err  error
}

func newFailure() *failure { return &failure{done: make(chan struct{})} }

// report is for the first reason; later ones follow from it.
func (f *failure) report(err error) {
	f.once.Do(func() {
		f.err = err
		close(f.done)
	})
}

// zap returns the logger to give to etcd.
func (f *failure) zap() *zap.Logger {
	return zap.New(zapcore.NewNopCore(), zap.WithPanicHook(f), zap.WithFatalHook(f))
}

// OnWrite implements zapcore.CheckWriteHook. It does not return.
func (f *failure) OnWrite(e *zapcore.CheckedEntry, fields []zapcore.Field) {
	err := errors.New(e.Message)
	for _, field := range fields {
		if cause, ok := field.Interface.(error); ok && field.Type == zapcore.ErrorType {
			err = fmt.Errorf("%s: %w", e.Message, cause)
		}
	}
	f.report(err)
	select {}
}

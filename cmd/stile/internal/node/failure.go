package node

import (
	"errors"
	"fmt"
	"sync"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// failure receives etcd's fatal errors. Where etcd would end the process, failure reports the error
// and blocks the goroutine: the data on disk is consistent at that point, and the caller of Start
// can report the error and end the process.
//
// Messages below that level are dropped: etcd logs errors in healthy operation too.
type failure struct {
	once sync.Once
	done chan struct{} // closed when err is set
	err  error
}

func newFailure() *failure { return &failure{done: make(chan struct{})} }

// report records the first error; later ones are its consequences.
func (f *failure) report(err error) {
	f.once.Do(func() {
		f.err = err
		close(f.done)
	})
}

// zap returns the logger for etcd.
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

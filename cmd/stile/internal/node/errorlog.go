package node

import (
	"log/slog"
	"maps"
	"slices"
	"sync/atomic"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// errorLog passes on what etcd dies of, and nothing else: what it calls errors comes up in healthy operation too.
type errorLog struct {
	log    *slog.Logger
	muted  *atomic.Bool
	fields []zapcore.Field
}

func newErrorLog(log *slog.Logger) *errorLog { return &errorLog{log: log, muted: new(atomic.Bool)} }

func (l *errorLog) mute() { l.muted.Store(true) }

// zap returns the logger to give to etcd. Where etcd would log a fatal error and end the process, it panics: that
// leaves a trace even if the log does not, and can be caught while the server starts.
func (l *errorLog) zap() *zap.Logger { return zap.New(l, zap.WithFatalHook(zapcore.WriteThenPanic)) }

// Enabled implements zapcore.Core.
func (l *errorLog) Enabled(level zapcore.Level) bool {
	return level >= zapcore.DPanicLevel && !l.muted.Load()
}

// With implements zapcore.Core.
func (l *errorLog) With(fields []zapcore.Field) zapcore.Core {
	return &errorLog{l.log, l.muted, slices.Concat(l.fields, fields)}
}

// Check implements zapcore.Core.
func (l *errorLog) Check(e zapcore.Entry, ce *zapcore.CheckedEntry) *zapcore.CheckedEntry {
	if l.Enabled(e.Level) {
		return ce.AddCore(e, l)
	}
	return ce
}

// Write implements zapcore.Core.
func (l *errorLog) Write(e zapcore.Entry, fields []zapcore.Field) error {
	enc := zapcore.NewMapObjectEncoder()
	for _, f := range slices.Concat(l.fields, fields) {
		f.AddTo(enc)
	}
	args := make([]any, 0, 2*len(enc.Fields))
	for _, key := range slices.Sorted(maps.Keys(enc.Fields)) {
		args = append(args, key, enc.Fields[key])
	}
	l.log.With(args...).Error("etcd: " + e.Message)
	return nil
}

// Sync implements zapcore.Core.
func (l *errorLog) Sync() error { return nil }

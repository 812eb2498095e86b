package jetstream

import (
	"context"
	"errors"
	"fmt"
	"maps"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/lifecycle"
	"github.com/agenthandoff/handoff/protocol"
)

// recordSubject returns the subject of a record, in the bucket of the agents' profiles.
func recordSubject(key broker.RecordKey) (string, error) {
	return agentPrefix + string(key.Kind) + "." + key.Name, protocol.CheckID("name", key.Name)
}

// Record implements broker.Engine.
func (j *Engine) Record(ctx context.Context, key broker.RecordKey) ([]byte, uint64, error) {
	subject, err := recordSubject(key)
	if err != nil {
		return nil, 0, err
	}
	msg, err := j.getMessage(ctx, agentStream, getRequest{LastFor: subject})
	switch {
	case errors.Is(err, broker.ErrNotFound):
		return nil, 0, nil
	case err != nil:
		return nil, 0, fmt.Errorf("%s %s: %w", key.Kind, key.Name, err)
	case msg.header(operationHeader) != "" || msg.header(jetstream.MarkerReasonHeader) != "":
		return nil, msg.Seq, nil
	}
	return msg.Data, msg.Seq, nil
}

// PutRecord implements broker.Engine. It retries a timeout for 12 s; if the earlier try was stored,
// it returns ErrConflict.
func (j *Engine) PutRecord(ctx context.Context, key broker.RecordKey, body []byte, rev uint64) (uint64, error) {
	subject, err := recordSubject(key)
	if err != nil {
		return 0, err
	}
	if len(body) > broker.RecordBytesMax {
		return 0, protocol.Errorf(protocol.CodeTooLarge, string(key.Kind), "%s", protocol.OverSize(len(body), broker.RecordBytesMax))
	}
	seq, err := j.putAfter(ctx, subject, body, rev)
	if err != nil {
		return 0, fmt.Errorf("put %s %s after %d: %w", key.Kind, key.Name, rev, err)
	}
	return seq, nil
}

// RemoveRecord implements broker.Engine.
func (j *Engine) RemoveRecord(ctx context.Context, key broker.RecordKey) error {
	subject, err := recordSubject(key)
	if err != nil {
		return err
	}
	if err := j.removeEntry(ctx, subject); err != nil {
		return fmt.Errorf("remove %s %s: %w", key.Kind, key.Name, err)
	}
	return nil
}

// recordsWith applies one record of the directory to those of its kind. An unreadable one is left out.
func recordsWith[R any](s *session, all map[string]R, name string, e jetstream.KeyValueEntry, read func(string, []byte) (R, error)) map[string]R {
	next := maps.Clone(all)
	delete(next, name)
	if e.Operation() != jetstream.KeyValuePut {
		return next
	}
	record, err := read(name, e.Value())
	if err != nil {
		s.w.j.cfg.Log.Warn("record left out of the directory", "key", e.Key(), "seq", e.Revision(), "err", err)
		return next
	}
	if next == nil {
		next = map[string]R{}
	}
	next[name] = record
	return next
}

// isRecord reports whether a subject is that of a record in the directory, or of its package.
func isRecord(subject string, d *lifecycle.Directory) bool {
	for _, prefix := range []string{schedulePrefix, packagePrefix} {
		if name, is := lastToken(subject, prefix); is {
			return hasKey(d.Schedules, name)
		}
	}
	for _, prefix := range []string{rulePrefix, templatePrefix} {
		if name, is := lastToken(subject, prefix); is {
			return hasKey(d.Rules, name)
		}
	}
	return subject == signalsSubject
}

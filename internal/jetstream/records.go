package jetstream

import (
	"context"

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
	body, rev, err := j.lastEntry(ctx, agentStream, subject)
	return body, rev, inContext(err, "%s %s", key.Kind, key.Name)
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
	seq, err := j.putBody(ctx, subject, body, &rev, 0)
	return seq, inContext(err, "put %s %s after %d", key.Kind, key.Name, rev)
}

// RemoveRecord implements broker.Engine.
func (j *Engine) RemoveRecord(ctx context.Context, key broker.RecordKey) error {
	subject, err := recordSubject(key)
	if err != nil {
		return err
	}
	return inContext(j.removeEntry(ctx, subject), "remove %s %s", key.Kind, key.Name)
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

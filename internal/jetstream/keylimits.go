package jetstream

import (
	"context"
	"fmt"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/protocol"
)

// KeyUse implements broker.Engine. An unreadable entry counts as none: the next beats of the holders
// restore their places.
func (j *Engine) KeyUse(ctx context.Context, key string) (protocol.KeyUse, uint64, error) {
	body, rev, err := j.lastEntry(ctx, holderStream, limitSubject(key))
	if err != nil || body == nil {
		return protocol.KeyUse{}, rev, inContext(err, "limit %s", key)
	}
	use, err := protocol.DecodeKeyUse(body)
	if err == nil && use.Key != key {
		err = fmt.Errorf("it is of another key, %q", use.Key)
	}
	if err != nil {
		j.cfg.Log.Warn("use of a limit not readable; it is counted again", "key", key, "seq", rev, "err", err)
		use = protocol.KeyUse{}
	}
	return use, rev, nil
}

// PutKeyUse implements broker.Engine. It retries a timeout for 12 s; if the earlier try was stored, it
// returns ErrConflict.
func (j *Engine) PutKeyUse(ctx context.Context, key string, use protocol.KeyUse, rev uint64) (uint64, error) {
	use.Key = key
	seq, err := j.putEntry(ctx, limitSubject(key), use, &rev, broker.KeyUseTTL(use, j.Now()))
	return seq, inContext(err, "put limit %s after %d", key, rev)
}

// KeyUses implements broker.Engine.
func (j *Engine) KeyUses(ctx context.Context) ([]protocol.KeyUse, error) {
	var uses []protocol.KeyUse
	err := j.eachSubject(ctx, holderStream, limitPrefix+"*", func(subject string) error {
		body, _, err := j.lastEntry(ctx, holderStream, subject)
		if use, unreadable := protocol.DecodeKeyUse(body); err == nil && unreadable == nil && limitSubject(use.Key) == subject {
			uses = append(uses, use)
		}
		return err
	})
	return uses, inContext(err, "limits by key")
}

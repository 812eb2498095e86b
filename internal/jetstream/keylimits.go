package jetstream

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/protocol"
)

// KeyUse implements broker.Engine. An unreadable entry counts as none: the next beats of the holders
// restore their places.
func (j *Engine) KeyUse(ctx context.Context, key string) (protocol.KeyUse, uint64, error) {
	msg, err := j.getMessage(ctx, holderStream, getRequest{LastFor: limitSubject(key)})
	switch {
	case errors.Is(err, broker.ErrNotFound):
		return protocol.KeyUse{}, 0, nil
	case err != nil:
		return protocol.KeyUse{}, 0, fmt.Errorf("limit %s: %w", key, err)
	case msg.header(operationHeader) != "" || msg.header(jetstream.MarkerReasonHeader) != "":
		return protocol.KeyUse{}, msg.Seq, nil
	}
	use, err := protocol.DecodeKeyUse(msg.Data)
	if err == nil && use.Key != key {
		err = fmt.Errorf("it is of another key, %q", use.Key)
	}
	if err != nil {
		j.cfg.Log.Warn("use of a limit not readable; it is counted again", "key", key, "seq", msg.Seq, "err", err)
		return protocol.KeyUse{}, msg.Seq, nil
	}
	return use, msg.Seq, nil
}

// PutKeyUse implements broker.Engine. It retries a timeout for 12 s; if the earlier try was stored, it
// returns ErrConflict.
func (j *Engine) PutKeyUse(ctx context.Context, key string, use protocol.KeyUse, rev uint64) (uint64, error) {
	use.Key = key
	body, err := json.Marshal(use)
	if err != nil {
		return 0, err
	}
	seq, err := j.putAfterFor(ctx, limitSubject(key), body, rev, broker.KeyUseTTL(use, j.Now()))
	if err != nil {
		return 0, fmt.Errorf("put limit %s after %d: %w", key, rev, err)
	}
	return seq, nil
}

// KeyUses implements broker.Engine.
func (j *Engine) KeyUses(ctx context.Context) ([]protocol.KeyUse, error) {
	var uses []protocol.KeyUse
	err := j.eachSubject(ctx, holderStream, limitPrefix+"*", func(subject string) error {
		msg, err := j.getMessage(ctx, holderStream, getRequest{LastFor: subject})
		if errors.Is(err, broker.ErrNotFound) {
			return nil
		}
		if err != nil {
			return err
		}
		if use, err := protocol.DecodeKeyUse(msg.Data); err == nil && limitSubject(use.Key) == subject {
			uses = append(uses, use)
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("limits by key: %w", err)
	}
	return uses, nil
}

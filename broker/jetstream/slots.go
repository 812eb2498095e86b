package jetstream

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/protocol"
)

// Slots implements broker.Engine.
func (j *Engine) Slots(ctx context.Context, agent string) (protocol.Slots, uint64, error) {
	msg, err := j.getMessage(ctx, holderStream, getRequest{LastFor: slotsSubject(agent)})
	if errors.Is(err, broker.ErrNotFound) {
		return nil, 0, nil
	}
	if err != nil {
		return nil, 0, fmt.Errorf("slots of %s: %w", agent, err)
	}
	var slots protocol.Slots
	if err := json.Unmarshal(msg.Data, &slots); err != nil { // another program's writing: begin anew
		j.cfg.Log.Warn("slots do not decode; they are counted anew", "agent", agent, "seq", msg.Seq, "err", err)
		slots = nil
	}
	maps.DeleteFunc(slots, func(ticket string, _ protocol.Slot) bool { // what is no handoff is in no hands
		_, err := protocol.ParseTicket(ticket)
		return err != nil
	})
	return slots, msg.Seq, nil
}

// PutSlots implements broker.Engine. A time-out is tried again for 12 s; where that was
// stored after all, the answer is ErrConflict.
func (j *Engine) PutSlots(ctx context.Context, agent string, slots protocol.Slots, rev uint64) (uint64, error) {
	body, err := json.Marshal(slots)
	if err != nil {
		return 0, err
	}
	seq, err := j.putAfter(ctx, slotsSubject(agent), body, rev)
	if err != nil {
		return 0, fmt.Errorf("put slots of %s after %d: %w", agent, rev, err)
	}
	return seq, nil
}

package jetstream

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/protocol"
)

// fleetSubject is where the settings of the fleet stand, beside the agents' profiles.
var fleetSubject = agentSubject(protocol.FleetKey)

// fleetIn reads the settings of the fleet out of their entry. It is strict: a program that does
// not know a field must not write the settings back without it.
func fleetIn(body []byte) (protocol.Fleet, error) {
	fleet, err := protocol.DecodeFleet(body)
	if err == nil {
		err = fleet.Validate()
	}
	return fleet, err
}

// Fleet implements broker.Engine.
func (j *Engine) Fleet(ctx context.Context) (protocol.Fleet, uint64, error) {
	msg, err := j.getMessage(ctx, agentStream, getRequest{LastFor: fleetSubject})
	switch {
	case errors.Is(err, broker.ErrNotFound):
		return protocol.Fleet{}, 0, nil
	case err != nil:
		return protocol.Fleet{}, 0, fmt.Errorf("settings of the fleet: %w", err)
	case msg.header(operationHeader) != "" || msg.header(jetstream.MarkerReasonHeader) != "":
		return protocol.Fleet{}, msg.Seq, nil
	}
	fleet, err := fleetIn(msg.Data)
	if err != nil {
		return fleet, msg.Seq, fmt.Errorf("settings of the fleet, entry %d: %w", msg.Seq, err)
	}
	return fleet, msg.Seq, nil
}

// PutFleet implements broker.Engine. A time-out is tried again for 12 s; where that was stored
// after all, the answer is ErrConflict.
func (j *Engine) PutFleet(ctx context.Context, fleet protocol.Fleet, rev uint64) (uint64, error) {
	body, err := json.Marshal(fleet)
	if err != nil {
		return 0, err
	}
	seq, err := j.putAfter(ctx, fleetSubject, body, rev)
	if err != nil {
		return 0, fmt.Errorf("put settings of the fleet after %d: %w", rev, err)
	}
	return seq, nil
}

// putAfter writes an entry if rev is still the sequence of the last one at its subject;
// broker.ErrConflict.
func (j *Engine) putAfter(ctx context.Context, subject string, body []byte, rev uint64) (seq uint64, err error) {
	return j.putAfterFor(ctx, subject, body, rev, 0)
}

// putAfterFor is putAfter for an entry that expires; 0 is never.
func (j *Engine) putAfterFor(ctx context.Context, subject string, body []byte, rev uint64, ttl time.Duration) (seq uint64, err error) {
	msg := nats.NewMsg(subject)
	msg.Data = body
	if ttl > 0 {
		msg.Header[jetstream.MsgTTLHeader] = []string{strconv.FormatInt(int64(ttl/time.Second), 10) + "s"}
	}
	msg.Header[jetstream.ExpectedLastSubjSeqHeader] = []string{strconv.FormatUint(rev, 10)}
	err = j.retryWithTimeout(ctx, func(ctx context.Context) (err error) {
		seq, err = j.publish(ctx, msg)
		return err
	})
	if hasCode(err, codeConflict) {
		err = broker.ErrConflict
	}
	return seq, err
}

package service

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/protocol"
	"github.com/agenthandoff/handoff/protocol/lifecycle"
)

// codeFailed is the code of an error that is nobody's input.
const codeFailed protocol.Code = "error"

// toWire is what whoever asked gets of an error, and whether it is the door's
// trouble. That is told to its log and not to him: he is not trusted.
func toWire(err error) (wire *protocol.Error, ours bool) {
	var refused *protocol.Error
	switch {
	case errors.As(err, &refused):
		return refused, false
	case errors.Is(err, broker.ErrLeaseLost):
		return protocol.Errorf(protocol.CodeLeaseLost, "lease", "is lost: the handoff is closed, or somebody else's by now; nothing was changed"), false
	case errors.Is(err, broker.ErrOfferGone):
		return protocol.Errorf(protocol.CodeGone, "offer", "is over, or somebody else's by now; pull the next one"), false
	case errors.Is(err, lifecycle.ErrStale), errors.Is(err, lifecycle.ErrIllegal):
		return protocol.Errorf(protocol.CodeIllegal, "lease", "the handoff is not where that can be said of it"), false
	case errors.Is(err, broker.ErrNotFound):
		return protocol.Errorf(protocol.CodeNotFound, "", "is not there"), false
	case errors.Is(err, broker.ErrUnreachable), errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		return protocol.Errorf(protocol.CodeUnreachable, "", "the door did not reach the engine in time; ask again"), true
	}
	return protocol.Errorf(codeFailed, "", "the door could not do it; its log says why"), true
}

// fromWire is the error of an answer, as the broker itself would have returned it.
func fromWire(e *protocol.Error) error {
	switch e.Code {
	case protocol.CodeLeaseLost, protocol.CodeLeaseInvalid:
		return fmt.Errorf("%w (%s)", broker.ErrLeaseLost, e.Message)
	case protocol.CodeGone:
		return fmt.Errorf("%w (%s)", broker.ErrOfferGone, e.Message)
	case protocol.CodeUnreachable:
		return fmt.Errorf("%w through the door: %s", broker.ErrUnreachable, e.Message)
	case codeFailed:
		return errors.New(e.Message)
	}
	return e
}

// errBusy is a door that has as much to do for this agent as it may. It counts as a door
// out of reach, and not as a refusal of what was said: it is worth asking again.
type errBusy struct {
	err   *protocol.Error
	again time.Duration // when
}

func (e *errBusy) Error() string {
	return fmt.Sprintf("%v through the door: %v", broker.ErrUnreachable, e.err)
}

func (e *errBusy) Unwrap() error { return broker.ErrUnreachable }

func readError(msg *nats.Msg) error {
	var e protocol.Error
	if err := json.Unmarshal(msg.Data, &e); err != nil || e.Code == "" {
		return errors.New("the door refused, and its answer does not say why")
	}
	if e.Code != protocol.CodeBusy {
		return fromWire(&e)
	}
	again := againLater
	if ms, err := strconv.Atoi(msg.Header.Get(headerAgain)); err == nil && ms > 0 {
		again = min(time.Duration(ms)*time.Millisecond, busyPatience)
	}
	return &errBusy{&e, again}
}

func forbidden(field, format string, args ...any) error {
	return protocol.Errorf(protocol.CodeForbidden, field, format, args...)
}

func invalid(field, format string, args ...any) error {
	return protocol.Errorf(protocol.CodeInvalid, field, format, args...)
}

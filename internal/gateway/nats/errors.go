package natsgateway

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/agenthandoff/handoff/api"
	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/protocol"
)

// fromWire is the error of an answer, as the broker itself would have returned it.
func fromWire(e *protocol.Error) error {
	switch e.Code {
	case protocol.CodeLeaseLost, protocol.CodeLeaseInvalid:
		return fmt.Errorf("%w (%s)", broker.LostTo(e.Clock), e.Message)
	case protocol.CodeGone:
		return fmt.Errorf("%w (%s)", broker.ErrOfferGone, e.Message)
	case protocol.CodeUnreachable:
		return fmt.Errorf("%w through the gateway: %s", broker.ErrUnreachable, e.Message)
	case api.CodeFailed:
		return errors.New(e.Message)
	}
	return e
}

// errBusy is a gateway that has as much to do for this agent as it may. It counts as a gateway
// out of reach, and not as a refusal of what was said: it is worth asking again.
type errBusy struct {
	err   *protocol.Error
	again time.Duration // when
}

func (e *errBusy) Error() string {
	return fmt.Sprintf("%v through the gateway: %v", broker.ErrUnreachable, e.err)
}

func (e *errBusy) Unwrap() error { return broker.ErrUnreachable }

func readError(msg *nats.Msg) error {
	var e protocol.Error
	if err := json.Unmarshal(msg.Data, &e); err != nil || e.Code == "" {
		return errors.New("the gateway refused, and its answer does not say why")
	}
	if e.Code != protocol.CodeBusy {
		return fromWire(&e)
	}
	again := retryHeldAfter
	if ms, err := strconv.Atoi(msg.Header.Get(headerAgain)); err == nil && ms > 0 {
		again = min(time.Duration(ms)*time.Millisecond, busyTimeout)
	}
	return &errBusy{&e, again}
}

func forbidden(field, format string, args ...any) error {
	return protocol.Errorf(protocol.CodeForbidden, field, format, args...)
}

func invalid(field, format string, args ...any) error {
	return protocol.Errorf(protocol.CodeInvalid, field, format, args...)
}

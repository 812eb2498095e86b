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
		return api.ErrorFrom(&e)
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

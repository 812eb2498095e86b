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

// errBusy is the error of a gateway that works on as many requests of this agent as it may. It counts as
// unreachable, so that the caller asks again.
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
		return errors.New("the gateway refused, without a reason")
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

func invalid(field, format string, args ...any) error {
	return protocol.Errorf(protocol.CodeInvalid, field, format, args...)
}

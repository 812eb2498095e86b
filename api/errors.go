package api

import (
	"context"
	"errors"
	"fmt"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/protocol"
	"github.com/agenthandoff/handoff/protocol/lifecycle"
)

// CodeFailed is the code of an error that no caller causes.
const CodeFailed protocol.Code = "error"

// ErrWaitEnded is why Wait returns when Config.Pause ended its wait before ctx did.
var ErrWaitEnded = errors.New("the wait was ended")

// LateResultError is of a result whose lease is lost and that counts no more.
type LateResultError struct {
	Lost error // broker.ErrLeaseLost, wrapped
	// Unkept says why the result could not be kept beside its handoff; nil if it was kept.
	Unkept error
}

func (e *LateResultError) Error() string {
	if e.Unkept == nil {
		return fmt.Sprintf("%v; the result was kept", e.Lost)
	}
	return fmt.Sprintf("%v; the result could not be kept either: %v", e.Lost, e.Unkept)
}

func (e *LateResultError) Unwrap() []error { return []error{e.Lost, e.Unkept} }

// Refusal returns what a caller may know of an error. internal says that the service or
// its engine is at fault: the details are for its log, and not for the caller.
func Refusal(err error) (refusal *protocol.Error, internal bool) {
	var refused *protocol.Error
	switch {
	case errors.As(err, &refused):
		return refused, false
	case errors.Is(err, broker.ErrLeaseLost):
		refused = protocol.Errorf(protocol.CodeLeaseLost, "lease", "is lost: the handoff is closed, or another holder's by now; nothing was changed")
		if refused.Clock = broker.ClockOf(err); refused.Clock != "" {
			refused.Message = "is lost: " + broker.LostTo(refused.Clock).Error() + "; nothing was changed"
		}
		return refused, false
	case errors.Is(err, broker.ErrOfferGone):
		return protocol.Errorf(protocol.CodeGone, "offer", "is over, or another holder's by now; pull the next one"), false
	case errors.Is(err, lifecycle.ErrStale), errors.Is(err, lifecycle.ErrIllegal):
		return protocol.Errorf(protocol.CodeIllegal, "lease", "the handoff is in a phase that does not allow this"), false
	case errors.Is(err, broker.ErrNotFound):
		return protocol.Errorf(protocol.CodeNotFound, "", "is not there"), false
	case errors.Is(err, broker.ErrNoAnswer):
		return protocol.Errorf(protocol.CodeUnreachable, "", "no index answers, and without one that is not told; ask again when one runs"), false
	case errors.Is(err, broker.ErrUnreachable), errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		return protocol.Errorf(protocol.CodeUnreachable, "", "the gateway did not reach the engine in time; ask again"), true
	}
	return protocol.Errorf(CodeFailed, "", "the gateway failed; its log says why"), true
}

func forbidden(field, format string, args ...any) error {
	return protocol.Errorf(protocol.CodeForbidden, field, format, args...)
}

// inField names the field of a refusal.
func inField(field string, err error) error {
	var e *protocol.Error
	if !errors.As(err, &e) {
		return err
	}
	named := *e
	named.Field = field
	return &named
}

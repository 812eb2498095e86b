package broker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/agenthandoff/handoff/protocol"
	"github.com/agenthandoff/handoff/protocol/lifecycle"
)

// isMalformed tells whether a result is refused for what it would hand on. The work is done
// then, and another attempt would do it again.
func isMalformed(err error, refusal *protocol.Error) bool {
	var handOff *handOffError
	return errors.As(err, &handOff) || refusal.Field == "command" || strings.HasPrefix(refusal.Field, "command.")
}

// handOffError is a refusal of what a result would hand on.
type handOffError struct{ refusal *protocol.Error }

func (e *handOffError) Error() string { return e.refusal.Error() }

func (e *handOffError) Unwrap() error { return e.refusal }

// unfollowable marks a refusal of what a result would hand on. Other errors stay as they are.
func unfollowable(err error) error {
	var refusal *protocol.Error
	if errors.As(err, &refusal) {
		return &handOffError{refusal}
	}
	return err
}

// malformedResult keeps a result whose command cannot be followed: as the text of one that says
// so. As JSON it might be deeper than a record may be.
func malformedResult(result protocol.Result, refusal *protocol.Error) protocol.Result {
	body, err := protocol.EncodeResult(result)
	if err != nil { // what cannot be written cannot be kept whole
		body = result.Body
	}
	kept := protocol.ResultFromText(body)
	kept.Malformed, kept.Usage = refusal.Error(), result.Usage
	return kept
}

// encodeMalformed writes a malformed result. Quoted as text, an output may be twice as long
// as it was: one that is too large then leaves its reason alone.
func encodeMalformed(result *protocol.Result) (json.RawMessage, error) {
	body, err := protocol.EncodeResult(*result)
	if err == nil && len(body) > protocol.ResultBytesMax {
		result.Body, result.SetAside = nil, "the output is too large to be kept"
		body, err = protocol.EncodeResult(*result)
	}
	return body, err
}

// completeMalformed fails the attempt with a malformed result, and keeps it. What follows is
// the core's decision. The error is a *protocol.Error with CodeBadResult; a holder that has
// lost its lease gets ErrLeaseLost, and the result is kept as other late ones are.
func (c *Claim) completeMalformed(ctx context.Context, result protocol.Result) error {
	refusal := protocol.Errorf(protocol.CodeBadResult, "", "%s", result.Malformed)
	body, err := encodeMalformed(&result)
	if err != nil {
		return err
	}
	var kept protocol.Failed
	if kept.Result, kept.Blob, err = c.b.storeResult(ctx, c.Ticket, body); err != nil {
		return err
	}
	if kept.Usage, err = c.price(ctx, validUsage(result.Usage)); err != nil {
		return err
	}
	err = c.appendReport(ctx, func(s protocol.State, now time.Time) (lifecycle.Step, error) {
		if err := c.checkAccepted(s); err != nil {
			return lifecycle.Step{}, err
		}
		return lifecycle.MalformedResult(s, c.Holder.ID, refusal.Message, kept, now)
	})
	if errors.Is(err, ErrLeaseLost) {
		err = c.resultAfterLoss(ctx, parked(result, kept.Result, kept.Blob), err)
	}
	if err != nil {
		return err
	}
	if err := c.finish(ctx); err != nil {
		return err
	}
	return refusal
}

// failRefused fails the attempt whose result is refused, and returns the refusal. What is no
// refusal of the result stays as it is.
func (c *Claim) failRefused(ctx context.Context, result protocol.Result, err error) error {
	var refusal *protocol.Error
	if !errors.As(err, &refusal) || refusal.Code == protocol.CodeIllegal {
		return err
	}
	if isMalformed(err, refusal) { // what cannot be handed in never will be
		err := c.completeMalformed(ctx, malformedResult(result, refusal))
		if errors.Is(err, &protocol.Error{Code: protocol.CodeBadResult}) {
			return refusal
		}
		return err
	}
	failure, _ := lifecycle.UnusableResult(refusal)
	failure.Usage = validUsage(result.Usage) // it was used all the same
	// While the ledger has not taken the failure the refusal is no answer:
	// the worker that got it would stop trying, with the handoff still in hand.
	if err := c.Fail(ctx, failure); err != nil {
		return fmt.Errorf("fail %s for its result (%v): %w", c.Ticket, refusal, err)
	}
	return refusal
}

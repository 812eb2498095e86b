package jetstream

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/agenthandoff/handoff/broker"
)

// RemoveOffer implements broker.Engine. It looks the offer up at the stream's leader and
// removes it by its sequence, which no later offer has: so a removal that comes late
// removes nothing else.
func (j *Engine) RemoveOffer(ctx context.Context, key broker.OfferKey) error {
	offer, err := j.getMessage(ctx, WorkStream, getRequest{LastFor: workSubject(key)})
	if err == nil {
		if err = j.removeStored(ctx, offer.Seq); err != nil { // it may have gone meanwhile, by an acknowledgement
			if _, after := j.getMessage(ctx, WorkStream, getRequest{Seq: offer.Seq}); errors.Is(after, broker.ErrNotFound) {
				err = nil
			}
		}
	}
	if err == nil || errors.Is(err, broker.ErrNotFound) || hasCode(err, codeNoStream) { // a stream that is made again has no ended offer
		return nil
	}
	return fmt.Errorf("remove offer %s of %s: %w", key.Ticket, key.Agent, err)
}

// removeStored removes an offer by its sequence in the work stream.
func (j *Engine) removeStored(ctx context.Context, sequence uint64) error {
	return j.retryWithTimeout(ctx, func(ctx context.Context) error {
		var answer struct {
			Error *apiError `json:"error"`
		}
		if err := j.requestJSON(ctx, removeSubject, removeBody(sequence), &answer); err != nil {
			return err
		}
		if answer.Error != nil {
			return answer.Error
		}
		return nil
	})
}

// Offers implements broker.Engine: the stream's subjects.
func (j *Engine) Offers(ctx context.Context, agent string, fn func(broker.OfferKey) error) error {
	err := j.eachSubject(ctx, WorkStream, workPrefix+cmp.Or(agent, "*")+".*.*.*", func(subject string) error {
		if key, ok := parseWorkSubject(subject); ok {
			if err := fn(key); err != nil {
				return &callerError{err}
			}
		}
		return nil
	})
	var mine *callerError
	switch {
	case errors.As(err, &mine):
		return mine.err
	case err != nil:
		return fmt.Errorf("offers: %w", err)
	}
	return nil
}

// OffersBetween implements broker.Engine.
func (j *Engine) OffersBetween(ctx context.Context, from, until time.Time, fn func(broker.OfferKey, time.Time) error) error {
	from = from.UTC()
	for request := (getRequest{StartTime: &from, NextFor: workPrefix + "*.*.*.*"}); ; {
		msg, err := j.getMessage(ctx, WorkStream, request)
		switch {
		case errors.Is(err, broker.ErrNotFound):
			return nil
		case err != nil:
			return fmt.Errorf("offers from %v: %w", from, err)
		case !msg.Time.Before(until):
			return nil
		}
		if key, ok := parseWorkSubject(msg.Subject); ok {
			if err := fn(key, msg.Time); err != nil {
				return err
			}
		}
		request.StartTime, request.Seq = nil, msg.Seq+1
	}
}

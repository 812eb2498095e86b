package jetstream

import "context"

// A server may live, and lead a consumer, while the copy of the stream that it
// delivers from has come to a halt. No client is told: requests end with nothing, as
// they do where there is nothing. So who gets nothing asks the stream's leader.

// recoverStuck is called when a request has ended and brought nothing. Where the consumer
// keeps back what was there when the request before ended, another server is made to
// lead it. It takes no longer than two tries; a question that is not answered is
// asked again when the next request has ended.
func (f *follower) recoverStuck(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, 2*tryTimeout)
	defer cancel()
	overdue := f.overdue
	f.overdue = 0
	last, err := f.lastMatching(ctx)
	if err != nil || last <= f.delivered {
		return // unanswered, or there is nothing
	}
	consumer, err := f.j.js.Consumer(ctx, f.stream, f.cfg.Durable)
	if err != nil {
		return
	}
	info := consumer.CachedInfo()
	f.delivered = info.Delivered.Stream
	switch {
	case last <= f.delivered: // to others
	case info.NumAckPending >= info.Config.MaxAckPending: // they have too much
	case overdue <= f.delivered: // it comes, or may yet
		f.overdue = last
	default:
		err := f.stepDown(ctx)
		f.j.cfg.Log.Warn("a consumer does not deliver what is there: another server is to lead it",
			"stream", f.stream, "consumer", f.cfg.Durable, "delivered", f.delivered, "last", last, "err", err)
	}
}

// lastMatching is the sequence of the last message that is for the consumer.
func (f *follower) lastMatching(ctx context.Context) (uint64, error) {
	if f.stream == LedgerStream { // all of it; a search by subject would pass over all that there are
		ledger, err := f.j.LedgerInfo(ctx)
		return ledger.Last, err
	}
	found, err := f.j.getMessage(ctx, f.stream, getRequest{LastFor: f.cfg.FilterSubject})
	return found.Seq, err
}

// stepDown has the server that leads the consumer leave that to another.
func (f *follower) stepDown(ctx context.Context) error {
	var answer struct {
		Error *apiError `json:"error"`
	}
	err := f.j.requestJSON(ctx, apiPrefix+"CONSUMER.LEADER.STEPDOWN."+f.stream+"."+f.cfg.Durable, nil, &answer)
	if err == nil && answer.Error != nil {
		err = answer.Error
	}
	return err
}

package brokertest

import (
	"context"
	"io"
	"testing"
	"time"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/protocol"
)

var everywhereCases = []conformanceCase{
	{"a context that has ended ends every method", contextEverywhere},
	{"a closed engine is not reachable", closedEverywhere},
	{"closing ends what waits", closeEndsWaits},
}

// methods calls every method that can fail.
func methods(ctx context.Context, e broker.Engine) map[string]error {
	ticket, all := protocol.NewTicket(), map[string]error{}
	entry := func(broker.Entry) error { return nil }
	_, all["Append"] = e.Append(ctx, ticket, 0, "x", "", []byte("x"))
	_, all["Last"] = e.Last(ctx, ticket, 0)
	_, all["Last with a minimum"] = e.Last(ctx, ticket, 1)
	_, all["Next"] = e.Next(ctx, ticket, 0)
	_, all["Since"] = e.Since(ctx, time.Now())
	all["Heads"] = e.Heads(ctx, entry)
	all["Entries"] = e.Entries(ctx, broker.From(1), entry)
	_, _, all["Feed"] = e.Feed(ctx, ticket)
	all["Follow"] = e.Follow(ctx, func(broker.Entry, func()) {})
	all["EnsureQueue"] = e.EnsureQueue(ctx, "nobody")
	all["PutOffer"] = e.PutOffer(ctx, broker.OfferKey{Agent: "nobody", Lane: protocol.Low, Ticket: ticket, Sequence: 1}, nil)
	all["RemoveOffer"] = e.RemoveOffer(ctx, broker.OfferKey{Agent: "nobody", Lane: protocol.Low, Ticket: ticket, Sequence: 1})
	all["Offers"] = e.Offers(ctx, "", func(broker.OfferKey) error { return nil })
	_, all["Pull"] = e.Pull(ctx, "nobody", 1, time.Second)
	_, all["QueueDepth"] = e.QueueDepth(ctx, "nobody")
	_, all["Queues"] = e.Queues(ctx)
	all["Arm"] = e.Arm(ctx, ticket, 1, time.Now().Add(time.Hour))
	entries := e.PublishOutbox(ctx, []broker.OutboxEntry{{Offer: broker.OfferKey{Agent: "nobody", Lane: protocol.Low, Ticket: ticket, Sequence: 1}, Body: []byte("x")},
		{WakeUp: broker.WakeUp{Ticket: ticket, Seq: 1, At: time.Now().Add(time.Hour)}}})
	all["PublishOutbox with an offer"], all["PublishOutbox with a wake-up"] = entries[0], entries[1]
	all["Due"] = e.Due(ctx, func(broker.WakeUp, func()) {})
	all["PutProfile"] = e.PutProfile(ctx, protocol.Profile{ID: "nobody"})
	_, all["Profile"] = e.Profile(ctx, "nobody")
	all["RemoveProfile"] = e.RemoveProfile(ctx, "nobody")
	all["Beat"] = e.Beat(ctx, protocol.Holder{ID: ticket, Agent: "nobody", LeaseMS: 1000})
	_, all["Holder"] = e.Holder(ctx, ticket)
	all["RemoveHolder"] = e.RemoveHolder(ctx, ticket)
	_, _, all["Slots"] = e.Slots(ctx, "nobody")
	_, all["PutSlots"] = e.PutSlots(ctx, "nobody", nil, 0)
	_, _, all["KeyUse"] = e.KeyUse(ctx, "nobody")
	_, all["PutKeyUse"] = e.PutKeyUse(ctx, "nobody", protocol.KeyUse{}, 0)
	_, all["KeyUses"] = e.KeyUses(ctx)
	_, all["Directory"] = e.Directory(ctx)
	_, all["Departures"] = e.Departures(ctx)
	_, all["PutBlob"] = e.PutBlob(ctx, []byte("x"))
	all["Serve"] = e.Serve(ctx, map[string]broker.Answerer{"nobody-" + ticket[:8]: nil})
	_, all["Ask"] = e.Ask(ctx, "nobody-"+ticket[:8], nil)
	_, all["Blob"] = e.Blob(ctx, broker.RefOf([]byte("x")))
	return all
}

func contextEverywhere(k *kit) {
	if _, err := k.Directory(k.ctx); err != nil { // so that there is a snapshot
		k.Fatal(err)
	}
	ctx, cancel := context.WithCancel(k.ctx)
	cancel()
	for name, err := range methods(ctx, k.Engine) {
		k.Run(name, func(t *testing.T) { (&kit{T: t}).wantErr(err, context.Canceled) })
	}
}

func closedEverywhere(k *kit) {
	c, ok := k.Engine.(io.Closer)
	if !ok {
		k.Skip("it cannot be closed")
	}
	if _, err := k.Directory(k.ctx); err != nil {
		k.Fatal(err)
	}
	k.must(c.Close())
	for name, err := range methods(k.ctx, k.Engine) {
		k.Run(name, func(t *testing.T) { (&kit{T: t}).wantErr(err, broker.ErrClosed) })
	}
	k.must(c.Close())
}

func closeEndsWaits(k *kit) {
	c, ok := k.Engine.(io.Closer)
	if !ok {
		k.Skip("it cannot be closed")
	}
	agent := k.agentWithQueue()
	ended := make(chan error, 3)
	go func() { _, err := k.Pull(k.ctx, agent, 1, time.Hour); ended <- err }()
	go func() { ended <- k.Follow(k.ctx, func(_ broker.Entry, done func()) { done() }) }()
	go func() { ended <- k.Due(k.ctx, func(_ broker.WakeUp, done func()) { done() }) }()
	k.noDelivery(agent)
	k.must(c.Close())
	for range 3 {
		k.wantErr(receive(k, "the end of what waits", ended), broker.ErrUnreachable)
	}
}

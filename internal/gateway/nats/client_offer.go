package natsgateway

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/protocol"
	"github.com/agenthandoff/handoff/worker"
)

// offer is an offer that a gateway has cached for this client.
type offer struct {
	c       *Client
	gateway string // which
	wire    *wireOffer
}

func newOffer(c *Client, gateway string, wire *wireOffer) *offer {
	return &offer{c: c, gateway: gateway, wire: wire}
}

func (o *offer) Ticket() string               { return o.wire.Ticket }
func (o *offer) Sequence() uint64             { return o.wire.Offer }
func (o *offer) State() *protocol.State       { return &o.wire.State }
func (o *offer) Inline() bool                 { return o.wire.Whole }
func (o *offer) Answers() []protocol.Answer   { return o.wire.Answers }
func (o *offer) Trail() []protocol.TrailEntry { return o.wire.Trail }

func (o *offer) Package(ctx context.Context) (json.RawMessage, error) {
	if o.wire.Whole {
		return o.wire.Package, nil
	}
	var whole content
	if _, err := o.c.call(ctx, o.gateway, verbPackage, true, 0, &offerRequest{Token: o.wire.Token}, &whole); err != nil {
		if errors.Is(err, &protocol.Error{Code: protocol.CodeNotFound}) { // no worker can read it
			err = fmt.Errorf("%w: %w", broker.ErrNotFound, err)
		}
		return nil, err
	}
	o.wire.Whole, o.wire.content = true, whole
	return whole.Package, nil
}

// notify tells the gateway about an offer that it cached. Without it the offer comes
// again after the ack wait.
func (o *offer) notify(verb string) error {
	ctx, cancel := context.WithTimeout(o.c.life, 2*time.Second)
	defer cancel()
	_, err := o.c.call(ctx, o.gateway, verb, true, 0, &offerRequest{Token: o.wire.Token}, &empty{})
	return err
}

func (o *offer) Release() error { return o.notify(verbReleaseOffer) }
func (o *offer) Extend() error  { return o.notify(verbExtend) }

// Acknowledge says all that another gateway needs to find out whether this was done
// before.
func (o *offer) Acknowledge(ctx context.Context, holder protocol.Holder, ack protocol.Ack, start bool) (worker.Claim, error) {
	if err := ack.Validate(); err != nil {
		return nil, err
	}
	key, err := o.c.key(holder.ID)
	if err != nil {
		return nil, err
	}
	said, err := protocol.Marshal(ack)
	if err != nil {
		return nil, err
	}
	request := &acknowledgeRequest{Token: o.wire.Token, Ticket: o.wire.Ticket, Offer: o.wire.Offer, Holder: key, LeaseMS: holder.LeaseMS, Ack: said, Start: start}
	var answer claimAnswer
	gateway, err := o.c.call(ctx, o.gateway, verbAcknowledge, false, 0, request, &answer)
	if err != nil || answer.State == nil {
		return nil, err
	}
	return &claim{c: o.c, gateway: gateway, ref: claimRef{Lease: answer.Lease, Fence: answer.State.Fence}, state: answer.State}, nil
}

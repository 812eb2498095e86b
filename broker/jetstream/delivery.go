package jetstream

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/agenthandoff/handoff/broker"
)

// delivery is an offer as delivered. It implements Delivery.
type delivery struct {
	key   broker.OfferKey
	body  []byte
	reply string // what an acknowledgement is published to
	j     *Engine
}

var (
	ackRemove  = []byte("+ACK")
	ackRelease = []byte("-NAK")
	ackExtend  = []byte("+WPI")
)

func (q *delivery) Key() broker.OfferKey { return q.key }
func (q *delivery) Body() []byte         { return q.body }
func (q *delivery) Release() error       { return q.acknowledge("release", ackRelease) }
func (q *delivery) Extend() error        { return q.acknowledge("extend", ackExtend) }

func (q *delivery) acknowledge(what string, word []byte) error {
	if err := q.j.nc.Publish(q.reply, word); err != nil {
		return fmt.Errorf("%s offer %s: %w: %w", what, q.key.Ticket, broker.ErrUnreachable, err)
	}
	return nil
}

// ackInfo is what the engine says of a delivery, in the subject for its
// acknowledgement.
type ackInfo struct {
	deliveries uint64 // of this offer, with this one; 0: not understood
	sequence   uint64 // in the work stream
	pending    uint64 // offers of the lane that were never delivered
}

// readAckSubject reads the subject for an acknowledgement. It has two forms:
//
//	$JS.ACK.STREAM.CONSUMER.DELIVERIES.SEQUENCE.CONSUMER_SEQUENCE.TIME.PENDING
//	$JS.ACK.DOMAIN.ACCOUNT.STREAM.CONSUMER.DELIVERIES.SEQUENCE.CONSUMER_SEQUENCE.TIME.PENDING[.TOKEN]
func readAckSubject(subject string) ackInfo {
	skip, understood := 4, true
	switch tokens := strings.Count(subject, ".") + 1; {
	case tokens >= 11:
		skip = 6
	case tokens != 9:
		return ackInfo{}
	}
	number := func() uint64 {
		token, rest, _ := strings.Cut(subject, ".")
		subject = rest
		n, err := strconv.ParseUint(token, 10, 64)
		understood = understood && err == nil
		return n
	}
	for range skip {
		_, subject, _ = strings.Cut(subject, ".")
	}
	deliveries, sequence := number(), number()
	number()
	number()
	pending := number()
	if !understood {
		return ackInfo{}
	}
	return ackInfo{deliveries: deliveries, sequence: sequence, pending: pending}
}

package jetstream

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/agenthandoff/handoff/broker"
)

// crowdMin is from how many consumers on the work stream on offers are removed
// by their sequence and not by an acknowledgement: with each acknowledgement the
// engine asks every consumer of the stream whether it has use for the message,
// 0.45 µs each, while nothing else can be stored in it. A removal by
// sequence asks the one whose it is, and costs a request to the engine's API,
// which is about as much as 50 consumers. Below half of it acknowledgements
// are used again.
const crowdMin = 100

// recordOfferCount is told how the work stream stands, every few seconds. Offers are
// removed by sequence where there are many consumers, and where that was tried: an
// operator may not let us. On replicas it stays with acknowledgements.
func (j *Engine) recordOfferCount(ctx context.Context, info *jetstream.StreamInfo) {
	consumers, crowded := info.State.Consumers, j.manyOffers.Load()
	switch {
	case info.Config.Replicas > 1 || consumers < crowdMin/2:
		j.manyOffers.Store(false)
	case !crowded && consumers >= crowdMin && j.removeCheckedOn != j.connectionCount.Load()+1:
		j.removeCheckedOn = j.connectionCount.Load() + 1
		j.manyOffers.Store(j.mayRemove(ctx, info.State.LastSeq))
	}
}

// mayRemove tells whether the engine lets us remove by sequence. It asks for one
// that there will not be in this life of the stream.
func (j *Engine) mayRemove(ctx context.Context, last uint64) bool {
	const far = 1 << 50
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	reply, err := j.nc.RequestWithContext(ctx, removeSubject, removeBody(last+far))
	var answer struct {
		Type string `json:"type"`
	}
	return err == nil && json.Unmarshal(reply.Data, &answer) == nil && answer.Type == "io.nats.jetstream.api.v1.stream_msg_delete_response"
}

const removeSubject = apiPrefix + "STREAM.MSG.DELETE." + WorkStream

func removeBody(sequence uint64) []byte {
	body := make([]byte, 0, 64)
	body = append(body, `{"seq":`...)
	body = strconv.AppendUint(body, sequence, 10)
	return append(body, `,"no_erase":true}`...)
}

// Remove implements Delivery. Like every acknowledgement it is sent, and not
// answered.
func (q *delivery) Remove() error {
	if q.j.manyOffers.Load() {
		if sent := readAckSubject(q.reply); sent.deliveries > 0 {
			if err := q.j.nc.Publish(removeSubject, removeBody(sent.sequence)); err != nil {
				return fmt.Errorf("remove offer %s: %w: %w", q.key.Ticket, broker.ErrUnreachable, err)
			}
			return nil
		}
	}
	return q.acknowledge("remove", ackRemove)
}

package jetstream

import (
	"context"
	"errors"
	"strings"

	"github.com/nats-io/nats.go/jetstream"
)

// Streams reads how all streams stand, as ShowTopology does.
func (j *Engine) Streams(ctx context.Context) ([]StreamStatus, error) {
	return ShowTopology(ctx, j.js)
}

// Deliveries are what the engine has handed out since its consumers were made,
// redeliveries included.
type Deliveries struct {
	Offers  uint64 // of the agents whose names begin with a prefix
	Entries uint64 // of the ledger, to supervisors that count
	WakeUps uint64 // and announcements
}

// Deliveries reads them. It asks for every consumer of the work stream.
func (j *Engine) Deliveries(ctx context.Context, agentPrefix string) (d Deliveries, err error) {
	work, err := j.js.Stream(ctx, WorkStream)
	if err != nil {
		return d, err
	}
	consumers := work.ListConsumers(ctx)
	for info := range consumers.Info() {
		if strings.HasPrefix(info.Name, agentPrefix) {
			d.Offers += info.Delivered.Consumer
		}
	}
	if err := consumers.Err(); err != nil {
		return d, err
	}
	for stream, count := range map[string]*uint64{LedgerStream: &d.Entries, TimerStream: &d.WakeUps} {
		consumer, err := j.js.Consumer(ctx, stream, SupervisorConsumer)
		if errors.Is(err, jetstream.ErrConsumerNotFound) {
			continue
		}
		if err != nil {
			return d, err
		}
		*count = consumer.CachedInfo().Delivered.Consumer
	}
	return d, nil
}

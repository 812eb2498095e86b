package bare

import (
	"context"
	"fmt"
	"hash/fnv"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/agenthandoff/handoff/broker"
	handoffjs "github.com/agenthandoff/handoff/internal/jetstream"
)

// Streams are the names of one ledger and of the queue that belongs to it.
type Streams struct{ Ledger, Work string }

// partition is one pair of streams, with the beginnings of their subjects.
type partition struct {
	Streams
	ledgerPrefix, workPrefix string
}

// connect opens the connections to the nodes. The caller closes them, also after an error.
func (r *runner) connect() error {
	each := 1
	if r.cfg.Spread {
		each = len(r.cfg.Nodes)
	}
	next := 0
	open := func() (*nats.Conn, error) {
		node := r.cfg.Nodes[next%len(r.cfg.Nodes)]
		next++
		return node.Conn()
	}
	for _, conns := range []*[]*nats.Conn{&r.sources, &r.workers} {
		for range each {
			nc, err := open()
			if err != nil {
				return err
			}
			*conns = append(*conns, nc)
		}
	}
	var err error
	r.keeper, err = open()
	return err
}

func (r *runner) close() {
	for _, nc := range append(append([]*nats.Conn{r.keeper}, r.sources...), r.workers...) {
		if nc != nil {
			nc.Close()
		}
	}
}

// partitionOf returns the streams of a ticket.
func (r *runner) partitionOf(ticket string) *partition {
	if len(r.partitions) == 1 {
		return &r.partitions[0]
	}
	hash := fnv.New32a()
	_, _ = hash.Write([]byte(ticket))
	return &r.partitions[hash.Sum32()%uint32(len(r.partitions))]
}

// place is the sum of the positions of the streams.
type place struct{ appends, ledgerBytes, offers, offerBytes uint64 }

func (r *runner) standing(ctx context.Context, js jetstream.JetStream) (all place, err error) {
	for _, p := range r.partitions {
		ledger, err := state(ctx, js, p.Ledger)
		if err != nil {
			return all, err
		}
		work, err := state(ctx, js, p.Work)
		if err != nil {
			return all, err
		}
		all.appends += ledger.LastSeq
		all.ledgerBytes += ledger.Bytes
		all.offers += work.LastSeq
		all.offerBytes += work.Bytes
	}
	return all, nil
}

func state(ctx context.Context, js jetstream.JetStream, name string) (jetstream.StreamState, error) {
	stream, err := js.Stream(ctx, name)
	if err != nil {
		return jetstream.StreamState{}, fmt.Errorf("stream %s: %w", name, err)
	}
	return stream.CachedInfo().State, nil
}

// prepare reads the subjects of the streams, and finds out by one message of each kind how
// large a body has to be for its stored message to have the requested size.
func (r *runner) prepare(ctx context.Context, js jetstream.JetStream) error {
	streams := r.cfg.Streams
	if len(streams) == 0 {
		streams = []Streams{{Ledger: handoffjs.LedgerStream, Work: handoffjs.WorkStream}}
	}
	for _, s := range streams {
		p := partition{Streams: s}
		for name, prefix := range map[string]*string{s.Ledger: &p.ledgerPrefix, s.Work: &p.workPrefix} {
			stream, err := js.Stream(ctx, name)
			if err != nil {
				return fmt.Errorf("stream %s: %w", name, err)
			}
			*prefix = strings.TrimSuffix(stream.CachedInfo().Config.Subjects[0], ">")
		}
		r.partitions = append(r.partitions, p)
	}
	before, err := r.standing(ctx, js)
	if err != nil {
		return err
	}
	ticket := uuid.NewString()
	p := r.partitionOf(ticket)
	seq, err := publish(r.sources[0], p.ledgerPrefix+ticket, 0, instant(0))
	if err != nil {
		return err
	}
	// An agent without a worker: the message stays, and no worker finds it.
	if _, err := publish(r.sources[0], p.workSubject(-1, ticket, seq), 0, instant(0)); err != nil {
		return err
	}
	after, err := r.standing(ctx, js)
	if err != nil {
		return err
	}
	body := func(wanted float64, before, after uint64) []byte {
		overhead := float64(after-before) - float64(len(instant(0)))
		return []byte(strings.Repeat("x", max(len(instant(0)), int(math.Round(wanted-overhead)))))
	}
	r.first = body(r.cfg.FirstBytes, before.ledgerBytes, after.ledgerBytes)
	r.later = body(r.cfg.LaterBytes, before.ledgerBytes, after.ledgerBytes)
	r.offer = body(r.cfg.OfferBytes, before.offerBytes, after.offerBytes)
	return nil
}

func (p *partition) workSubject(agent int, ticket string, seq uint64) string {
	return p.workPrefix + "bare-" + strconv.Itoa(agent) + ".normal." + ticket + "." + strconv.FormatUint(seq, 10)
}

// pullExpiry is short: in a cluster the first pull of a new consumer can be lost, and is
// repeated when it has had no heartbeat for as long.
const pullExpiry = 2 * time.Second

// consume has the offers of an agent delivered.
func (p *partition) consume(ctx context.Context, nc *nats.Conn, agent, ahead int, offers chan<- jetstream.Msg) (jetstream.ConsumeContext, error) {
	js, err := jetstream.New(nc)
	if err != nil {
		return nil, err
	}
	name := "bare-" + strconv.Itoa(agent)
	consumer, err := js.CreateConsumer(ctx, p.Work, jetstream.ConsumerConfig{
		Durable: name, FilterSubject: p.workPrefix + name + ".normal.>",
		AckPolicy: jetstream.AckExplicitPolicy, AckWait: broker.AckWait, MaxDeliver: -1,
		MaxAckPending: ackPendingMax, MaxWaiting: waitingMax, MemoryStorage: true})
	if err != nil {
		return nil, err
	}
	return consumer.Consume(func(m jetstream.Msg) { offers <- m }, jetstream.PullMaxMessages(ahead), jetstream.PullExpiry(pullExpiry))
}

// follow has every entry of the ledger delivered.
func (p *partition) follow(ctx context.Context, js jetstream.JetStream) (jetstream.ConsumeContext, error) {
	consumer, err := js.CreateConsumer(ctx, p.Ledger, jetstream.ConsumerConfig{
		Durable: handoffjs.SupervisorConsumer, DeliverPolicy: jetstream.DeliverNewPolicy, FilterSubject: p.ledgerPrefix + ">",
		AckPolicy: jetstream.AckExplicitPolicy, AckWait: broker.AckWait, MaxDeliver: -1, MaxAckPending: followPending})
	if err != nil {
		return nil, err
	}
	return consumer.Consume(func(m jetstream.Msg) { _ = m.Ack() }, jetstream.PullMaxMessages(followBatch))
}

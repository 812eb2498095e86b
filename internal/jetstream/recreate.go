package jetstream

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/agenthandoff/handoff/broker"
)

// recreatedStreams are recreated when they are lost, in each partition, by any process that may. Offers and wake-ups
// are restored from the ledger, presence by the next beats. Bodies and signals are stored nowhere
// else: a handoff whose body is lost is stuck, and every other one continues; a signal that is lost
// begins nothing, unless its sender sends it again.
var recreatedStreams = []string{WorkStream, TimerStream, holderStream, blobStream, SignalStream}

// holderEpochBits is the number of bits that count writes in a sequence of the holders' bucket; the
// bits above are the creation time of the stream, in units of holderEpochUnit since 2020. The
// sequence stays below 2^53, which any JSON reader represents exactly.
const (
	holderEpochBits = 20
	holderEpochUnit = time.Second / 16
)

// holderFirstSeq returns the first sequence of a holders' stream created now. A watch that outlives
// the stream misses nothing of the next one, and each write shows which stream it went to.
func holderFirstSeq(now time.Time) uint64 {
	return uint64(now.Sub(time.Date(2020, 1, 1, 0, 0, 0, 0, time.UTC))/holderEpochUnit) << holderEpochBits
}

// holderEpochOf returns the same value for two writes to one holders' stream, and different values
// for different streams. It changes once per million writes to a stream, which restarts a watch.
func holderEpochOf(seq uint64) uint64 { return seq >> holderEpochBits }

// makeMissing creates a stream unless it exists.
func makeMissing(ctx context.Context, js jetstream.JetStream, want jetstream.StreamConfig) (stream jetstream.Stream, made bool, err error) {
	stream, err = js.Stream(ctx, want.Name)
	if !errors.Is(err, jetstream.ErrStreamNotFound) {
		return stream, false, wrapStream("read", want.Name, err)
	}
	stream, err = js.CreateStream(ctx, want)
	if errors.Is(err, jetstream.ErrStreamNameAlreadyInUse) { // another process was first
		stream, err = js.Stream(ctx, want.Name)
		return stream, false, wrapStream("read", want.Name, err)
	}
	return stream, err == nil, wrapStream("create", want.Name, err)
}

// identityInterval is the time between two checks that the streams are the same as before.
const identityInterval = 3 * time.Second

// watchIdentity checks whether the recreated streams are still the same, recreates lost ones, and
// signals Reconnected. One goroutine, from the first call of Reconnected until Close.
func (j *Engine) watchIdentity() {
	tick := time.NewTicker(identityInterval)
	defer tick.Stop()
	for {
		found := map[string]time.Time{}
		for _, name := range j.recreatedNames() {
			created, err := j.streamCreated(name)
			if err != nil {
				continue // not reachable, or not permitted; the next tick retries
			}
			found[name] = created
		}
		j.recordCreated(found, false)
		select {
		case <-j.closing.Done():
			return
		case <-tick.C:
		}
	}
}

// recreatedNames returns the names of the recreated streams of all partitions.
func (j *Engine) recreatedNames() []string {
	all := slices.Clone(recreatedStreams)
	n := j.partitions()
	return append(append(all, workStreams[1:n]...), timerStreams[1:n]...)
}

// recordCreated records the creation times of streams. If one has changed, or if anew is set
// because they were created just now, it signals Reconnected once: refilling the outbox entries of
// a million handoffs takes a minute.
func (j *Engine) recordCreated(created map[string]time.Time, anew bool) {
	lost := false
	j.mu.Lock()
	for name, at := range created {
		was, known := j.createdAt[name]
		if j.createdAt[name] = at; anew || known && !was.Equal(at) {
			lost = true
			j.cfg.Log.Warn("stream was lost and recreated", "stream", name, "lost", lostWith[BaseOf(name)])
		}
	}
	j.mu.Unlock()
	if lost {
		j.notifyReconnected()
	}
}

// lostWith describes the content of each stream, and how it is restored.
var lostWith = map[string]string{
	WorkStream:   "offers; supervisors queue them again",
	TimerStream:  "wake-ups; supervisors arm them again",
	holderStream: "presence, slots and the health of agents; the next beats restore them",
	SignalStream: "signals that no supervisor had taken; their senders may send them again",
	blobStream:   "large packages and results; an open handoff that needs one is stuck",
}

// streamCreated returns the creation time of a recreated stream. It creates a missing one.
func (j *Engine) streamCreated(name string) (time.Time, error) {
	ctx, cancel := context.WithTimeout(j.closing, tryTimeout)
	defer cancel()
	stream, err := j.js.Stream(ctx, name)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		if err := j.recreate(ctx); err != nil {
			return time.Time{}, err
		}
		stream, err = j.js.Stream(ctx, name)
	}
	if err != nil {
		return time.Time{}, err
	}
	if p := slices.Index(workStreams[:], name); p >= 0 {
		j.recordOfferCount(ctx, p, stream.CachedInfo())
	}
	return stream.CachedInfo().Created, nil
}

// recreate creates the missing ones of the recreated streams, as the ledger's metadata describes
// them, and then signals Reconnected. A stream that this process is not permitted to create is
// tried once per connection.
func (j *Engine) recreate(ctx context.Context) error {
	j.heal.Lock()
	defer j.heal.Unlock()
	t, err := topologyOf(ctx, j.js)
	if err != nil {
		return err
	}
	made, connection := map[string]time.Time{}, j.connectionCount.Load()+1
	var errs []error
	for _, want := range t.streams(time.Now()) {
		if !slices.Contains(recreatedStreams, BaseOf(want.Name)) || j.mayNotMake[want.Name] == connection {
			continue
		}
		err := j.denied.watchWhile(ctx, j.nc, apiPrefix+"STREAM.CREATE."+want.Name, func(ctx context.Context) error {
			stream, created, err := makeMissing(ctx, j.js, want)
			if created {
				made[want.Name] = stream.CachedInfo().Created
			}
			return err
		})
		if errors.Is(err, broker.ErrNotAllowed) {
			j.mayNotMake[want.Name] = connection
		}
		errs = append(errs, err)
	}
	for p, name := range workStreams {
		if !made[name].IsZero() {
			errs = append(errs, putSentinel(ctx, j.js, p))
		}
	}
	j.recordCreated(made, true)
	return errors.Join(errs...)
}

package jetstream

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/protocol"
)

// A ledger of several partitions has as many streams for the ledger, for work and for timers. The
// ledger and the timers are divided by the ticket, work by the agent, so that the lanes of an agent
// stay in one stream. Partition 0 has the names of a ledger that is not divided.
//
// This file is the only one that maps a ticket or an agent to its partition. A sequence names its own
// (broker.PartitionOf), so only the first entry of a handoff, and a read that has no sequence, need
// the map.

// partitioned returns the name of a stream in a partition.
func partitioned(name string, p int) string {
	if p == 0 {
		return name
	}
	return name + "_" + strconv.Itoa(p)
}

// partitionedPrefix returns the prefix of the subjects of a partition.
func partitionedPrefix(prefix string, p int) string {
	if p == 0 {
		return prefix
	}
	return strings.TrimSuffix(prefix, ".") + "-" + strconv.Itoa(p) + "."
}

// names has the names of one kind of stream, or its prefixes, in all partitions.
type names [broker.PartitionsMax]string

func namesOf(base string, of func(string, int) string) (all names) {
	for p := range all {
		all[p] = of(base, p)
	}
	return all
}

var (
	ledgerStreams  = namesOf(LedgerStream, partitioned)
	workStreams    = namesOf(WorkStream, partitioned)
	timerStreams   = namesOf(TimerStream, partitioned)
	ledgerPrefixes = namesOf(ledgerPrefix, partitionedPrefix)
	workPrefixes   = namesOf(workPrefix, partitionedPrefix)
	timerPrefixes  = namesOf(timerPrefix, partitionedPrefix)
	duePrefixes    = namesOf(duePrefix, partitionedPrefix)
)

// LedgerStreams, WorkStreams and TimerStreams return the names of the streams of n partitions.
func LedgerStreams(n int) []string { return slices.Clone(ledgerStreams[:n]) }
func WorkStreams(n int) []string   { return slices.Clone(workStreams[:n]) }
func TimerStreams(n int) []string  { return slices.Clone(timerStreams[:n]) }

// LedgerPartition returns the stream of a partition of the ledger, and the prefix of its subjects.
func LedgerPartition(p int) (stream, prefix string) { return ledgerStreams[p], ledgerPrefixes[p] }

// PartitionsIn returns the number of partitions by the metadata of the first ledger stream.
func PartitionsIn(metadata map[string]string) int { return partitionsIn(metadata, time.Time{}).count() }

// BaseOf returns the name of a stream without its partition: that of partition 0.
func BaseOf(stream string) string {
	for _, base := range []string{LedgerStream, WorkStream, TimerStream} {
		if number, ok := strings.CutPrefix(stream, base+"_"); ok {
			if p, err := strconv.Atoi(number); err == nil && p > 0 && p < broker.PartitionsMax {
				return base
			}
		}
	}
	return stream
}

// cutPrefix removes the prefix of a kind of subject, in any partition.
func cutPrefix(subject, prefix string) (rest string, p int, ok bool) {
	if rest, ok = strings.CutPrefix(subject, prefix); ok {
		return rest, 0, true
	}
	number, ok := strings.CutPrefix(subject, prefix[:len(prefix)-1]+"-")
	if !ok {
		return "", 0, false
	}
	number, rest, ok = strings.Cut(number, ".")
	p, err := strconv.Atoi(number)
	return rest, p, ok && err == nil && p > 0 && p < broker.PartitionsMax && strconv.Itoa(p) == number
}

// metaPartitions is the key of the generations of the map, in the metadata of the first ledger stream.
// Without it there is one partition.
const metaPartitions = "handoff_partitions"

// generation is the map since an instant of the engine's clock: the number of partitions.
type generation struct {
	N    int       `json:"n"`
	From time.Time `json:"from,omitzero"` // zero is the beginning
}

// partitionMap maps tickets and agents to partitions.
type partitionMap struct {
	generations []generation // the oldest first
	read        time.Time    // by the clock of this process, when the engine was asked for it
}

// partitionsIn reads the map from the metadata of the first ledger stream.
func partitionsIn(metadata map[string]string, read time.Time) *partitionMap {
	m := &partitionMap{read: read}
	if err := json.Unmarshal([]byte(metadata[metaPartitions]), &m.generations); err != nil {
		m.generations = nil
	}
	m.generations = slices.DeleteFunc(m.generations, func(g generation) bool { return g.N < 1 || g.N > broker.PartitionsMax })
	if len(m.generations) == 0 {
		m.generations = []generation{{N: 1}}
	}
	return m
}

// count returns the number of partitions that exist.
func (m *partitionMap) count() int { return m.generations[len(m.generations)-1].N }

// undivided reports whether there was only ever one partition.
func (m *partitionMap) undivided() bool { return m.count() == 1 }

// Divide returns the partition of a key among n.
func Divide(key string, n int) int {
	if n == 1 {
		return 0
	}
	hash := uint64(14695981039346656037) // FNV-1a
	for i := range len(key) {
		hash = (hash ^ uint64(key[i])) * 1099511628211
	}
	return int((hash ^ hash>>32) % uint64(n))
}

// places returns the partitions in which a key may be at an instant, the newest generation first, each
// once.
func (m *partitionMap) places(key string, now time.Time) []int {
	places := make([]int, 0, len(m.generations))
	for _, g := range slices.Backward(m.generations) {
		if p := Divide(key, g.N); !g.From.After(now) && !slices.Contains(places, p) {
			places = append(places, p)
		}
	}
	return places
}

// place returns the partition of a key in the newest generation.
func (m *partitionMap) place(key string, now time.Time) int {
	if m.undivided() {
		return 0
	}
	return m.places(key, now)[0]
}

const (
	// mapAge is how long a process may use the map that it has read to begin a handoff whose ticket
	// another process may choose, too.
	mapAge = 90 * time.Second
	// GrowAfter is the time from the announcement of a generation to its beginning. Then every process
	// that could begin a handoff has read it: mapAge, and the time that an append may be on its way.
	GrowAfter = 150 * time.Second
	// growPause is how long before that no process that knows of it begins such a handoff: the clocks of
	// two processes differ, and an append takes its time.
	growPause = 10 * time.Second
	// growCheck is how long after it a handoff with a random ticket is looked for in the older
	// generations, too: its process may have tried to begin it there.
	growCheck = time.Hour
)

// adoptPartitions stores the map that was read.
func (j *Engine) adoptPartitions(m *partitionMap) {
	for {
		old := j.parts.Load()
		if old != nil && old.read.After(m.read) {
			return
		}
		if !j.parts.CompareAndSwap(old, m) {
			continue
		}
		if old != nil && !slices.Equal(old.generations, m.generations) {
			j.mu.Lock()
			close(j.partsChanged)
			j.partsChanged = make(chan struct{})
			j.mu.Unlock()
			j.cfg.Log.Info("the ledger has more partitions", "partitions", m.count())
			j.start(func() { j.afterGrowth(m) })
		}
		return
	}
}

// afterGrowth signals Reconnected once the new generation has begun: supervisors then queue the offers
// again, where the agents' workers look for them from now on.
func (j *Engine) afterGrowth(m *partitionMap) {
	j.pause(j.closing, max(0, m.generations[len(m.generations)-1].From.Sub(j.Now()))+time.Second, nil)
	if !j.isClosed() {
		j.notifyReconnected()
	}
}

// partitionsChange returns the map, and a channel that is closed when the engine has another one.
func (j *Engine) partitionsChange() (*partitionMap, <-chan struct{}) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.parts.Load(), j.partsChanged
}

// partitions returns the number of partitions.
func (j *Engine) partitions() int { return j.parts.Load().count() }

// freshPartitions returns the map, read from the engine if the last reading is too old.
func (j *Engine) freshPartitions(ctx context.Context) (*partitionMap, error) {
	if m := j.parts.Load(); time.Since(m.read) < j.cfg.MapAge {
		return m, nil
	}
	err := j.retryWithTimeout(ctx, j.readLedger)
	return j.parts.Load(), err
}

// isRandom reports whether a ticket is a random UUID, which only one process ever begins. A derived one
// may be begun by several at once.
func isRandom(ticket string) bool { return len(ticket) == 36 && ticket[14] == '4' }

// beginIn returns the partition for the first entry of a handoff. Two processes that begin it at once
// get the same one. If the handoff exists already, seq is the sequence of its first entry, and id the
// record's.
func (j *Engine) beginIn(ctx context.Context, ticket string) (p int, seq uint64, id string, err error) {
	if m := j.parts.Load(); isRandom(ticket) {
		if newest := m.generations[len(m.generations)-1]; newest.From.IsZero() || j.Now().Sub(newest.From) > growCheck {
			return m.place(ticket, j.Now()), 0, "", nil
		}
	}
	for {
		m, err := j.freshPartitions(ctx)
		if err != nil {
			return 0, 0, "", err
		}
		if m.undivided() {
			return 0, 0, "", nil
		}
		places := m.places(ticket, j.Now())
		newest := m.generations[len(m.generations)-1]
		if until := newest.From.Sub(j.Now()); until > 0 && until < growPause && Divide(ticket, newest.N) != places[0] {
			if err := j.pauseUntil(ctx, newest.From); err != nil {
				return 0, 0, "", err
			}
			continue
		}
		for _, older := range places[1:] {
			first, err := j.getMessage(ctx, ledgerStreams[older], getRequest{Seq: broker.PartitionBase(older) + 1, NextFor: ledgerSubject(older, ticket)})
			if err == nil {
				return older, first.Seq, first.header(recordHeader), nil
			}
			if !errors.Is(err, broker.ErrNotFound) {
				return 0, 0, "", err
			}
		}
		return places[0], 0, "", nil
	}
}

// beginsElsewhere reports whether a handoff may have to begin in another partition than at the first
// try.
func (j *Engine) beginsElsewhere(ticket string) bool {
	m := j.parts.Load()
	return !isRandom(ticket) && (!m.undivided() || time.Since(m.read) >= j.cfg.MapAge)
}

func (j *Engine) pauseUntil(ctx context.Context, at time.Time) error {
	j.pause(ctx, at.Sub(j.Now())+time.Millisecond, nil)
	if j.isClosed() {
		return broker.ErrClosed
	}
	return ctx.Err()
}

// inPlaces calls read with each partition that may have a ticket until one has it. Only a ticket of an
// older generation needs a second call.
func (j *Engine) inPlaces(ticket string, read func(p int) error) error {
	m := j.parts.Load()
	if m.undivided() {
		return read(0)
	}
	var err error
	for _, p := range m.places(ticket, j.Now()) {
		if err = read(p); !errors.Is(err, broker.ErrNotFound) {
			return err
		}
	}
	return err
}

// queueIn returns the partition of an agent's queue.
func (j *Engine) queueIn(agent string) int { return j.parts.Load().place(agent, j.Now()) }

// timerIn returns the partition of a wake-up: that of its entry. One without an entry may be in any.
func timerIn(seq uint64) int { return min(broker.PartitionOf(seq), broker.PartitionsMax-1) }

// eachPartition calls fn for every partition, all at once, and returns the first error.
func (j *Engine) eachPartition(fn func(p int) error) error {
	n := j.partitions()
	if n == 1 {
		return fn(0)
	}
	var group errgroup.Group
	for p := range n {
		group.Go(func() error { return fn(p) })
	}
	return group.Wait()
}

// whileGrowing runs a function for each partition, also for those that are added, until one returns or
// ctx ends, and then waits for the others. run gets a mutex for the data that the functions share.
func (j *Engine) whileGrowing(ctx context.Context, run func(ctx context.Context, p int, shared *sync.Mutex) error) error {
	var shared sync.Mutex
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var all sync.WaitGroup
	for n := 0; ; {
		m, changed := j.partitionsChange()
		for ; n < m.count(); n++ {
			p := n
			all.Go(func() { cancel(run(ctx, p, &shared)) })
		}
		select {
		case <-changed:
		case <-ctx.Done():
			all.Wait()
			return context.Cause(ctx)
		}
	}
}

// grown returns the metadata of the map that has n partitions from an instant on; a zero instant is the
// beginning.
func (m *partitionMap) grown(n int, at time.Time) (string, error) {
	if n < m.count() {
		return "", protocol.Errorf(protocol.CodeConflict, "partitions", "must be at least %d, as many as there are: partitions are added, and never removed", m.count())
	}
	next := append(slices.Clone(m.generations), generation{N: n, From: at.UTC()})
	if at.IsZero() {
		next = []generation{{N: n}}
	}
	body, err := json.Marshal(next)
	return string(body), err
}

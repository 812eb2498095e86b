package jetstream

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"golang.org/x/sync/errgroup"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/protocol"
)

const (
	// queuesTry bounds one try of a request of Queues. In a cluster the engine itself waits up to 4 s
	// for silent nodes.
	queuesTry = 6 * time.Second
	// subjectsMax is more than the subjects of any stream: as an offset it makes the engine count them
	// and list none.
	subjectsMax = 1_000_000_000
	lanesAtOnce = 16 // that are read in parallel
)

// Queues implements broker.Engine. With 200 agents it takes 6 requests and one per non-empty lane:
// consumers are listed 256 at a time. Only if there are offers without a consumer (a restarted
// single node has forgotten them, until workers come) it sends another request for each agent
// without consumers.
func (j *Engine) Queues(ctx context.Context) ([]broker.QueueStatus, error) {
	ctx, cancel := context.WithTimeout(ctx, j.cfg.Timeout)
	defer cancel()
	var all []broker.QueueStatus
	err := j.retryEach(ctx, queuesTry, func(ctx context.Context) error {
		var mu sync.Mutex
		all = nil
		return j.eachPartition(func(p int) error {
			some, err := j.queues(ctx, p)
			if hasCode(err, codeNoStream) { // it will be recreated and filled
				return nil
			}
			mu.Lock()
			defer mu.Unlock()
			all = append(all, some...)
			return err
		})
	})
	sortQueues(all)
	switch {
	case err == nil:
		return all, nil
	case errors.Is(err, context.DeadlineExceeded):
		err = &broker.SilenceError{After: j.cfg.Timeout, Last: err}
	}
	return nil, fmt.Errorf("read the queues: %w", err)
}

// laneState is a lane with the sequence up to which it has no offers, and the one up to which all
// were delivered.
type laneState struct {
	broker.QueueStatus
	floor, delivered uint64
}

func (j *Engine) queues(ctx context.Context, p int) ([]broker.QueueStatus, error) {
	connection := j.connectionCount.Load()
	start, err := j.workStart(ctx, p)
	if err != nil {
		return nil, err
	}
	lanes, covered, err := j.coveredLanes(ctx, p)
	if err != nil {
		return nil, err
	}
	standing := 0
	for _, lane := range lanes {
		standing += lane.Depth
	}
	if start.offers > standing {
		others, err := j.uncoveredLanes(ctx, p, covered)
		if err != nil {
			return nil, err
		}
		lanes = append(lanes, others...)
	}
	next := &lanesKnown{start, connection, make(map[string]knownLane, len(lanes))}
	known := j.lanes[p].Load()
	if known == nil || !known.created.Equal(start.created) || known.connection != connection {
		known = &lanesKnown{}
	}
	grown, all, err := j.grownSince(ctx, p, known, start.last)
	if err != nil {
		return nil, err
	}
	var group errgroup.Group
	group.SetLimit(lanesAtOnce)
	listed := slices.Clone(lanes)
	for i := range lanes {
		lane, filter := &lanes[i], laneFilter(p, lanes[i].Agent, lanes[i].Lane)
		before := known.of[filter]
		if before.listed == *lane && !all && !grown[filter] {
			*lane = before.aged
			continue
		}
		lane.floor = max(lane.floor+1, start.first, before.aged.floor+1) - 1
		group.Go(func() error { return j.age(ctx, p, lane) })
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	statuses := make([]broker.QueueStatus, 0, len(lanes))
	for i, lane := range lanes {
		if !lane.Oldest.IsZero() {
			statuses = append(statuses, lane.QueueStatus)
			next.of[laneFilter(p, lane.Agent, lane.Lane)] = knownLane{listed[i], lane}
		}
	}
	j.lanes[p].Store(next)
	return statuses, nil
}

// lanesKnown are the lanes of the last look, by their filters: the engine answers one question for the age of
// a lane after the other. A lane is as it was if the engine lists it with the same numbers and it got no
// offer: then it lost none either. And no offer comes to a lane before its first one, so the next search
// for that begins there. All this holds for one stream, and for a connection: an engine that restarts may
// have lost its last offers.
type lanesKnown struct {
	workState  // before the lanes were listed
	connection uint64
	of         map[string]knownLane
}

// knownLane is a lane as the engine listed it, and with its ages.
type knownLane struct{ listed, aged laneState }

// grownSince returns the filters of the lanes that got an offer since the last look, up to a sequence; all if
// to read these offers takes longer than to read all lanes again.
func (j *Engine) grownSince(ctx context.Context, p int, known *lanesKnown, last uint64) (grown map[string]bool, all bool, err error) {
	if last-known.last >= uint64(len(known.of)) {
		return nil, last != known.last, nil
	}
	filters := make([]string, last-known.last)
	var group errgroup.Group
	group.SetLimit(lanesAtOnce)
	for i := range filters {
		group.Go(func() error {
			offer, err := j.getMessage(ctx, workStreams[p], getRequest{Seq: known.last + 1 + uint64(i)})
			if errors.Is(err, broker.ErrNotFound) {
				return nil
			}
			if key, ok := parseWorkSubject(offer.Subject); ok {
				filters[i] = laneFilter(p, key.Agent, key.Lane)
			}
			return err
		})
	}
	err = group.Wait()
	grown = make(map[string]bool, len(filters))
	for _, filter := range filters {
		grown[filter] = true
	}
	return grown, false, err
}

// age reads when the first offers of a lane were queued; none is left if meanwhile the last one was taken.
// The search begins at the floor, so that the engine finds the first offer without scanning all subjects
// of a deep queue.
func (j *Engine) age(ctx context.Context, p int, lane *laneState) error {
	oldest, err := j.getMessage(ctx, workStreams[p], getRequest{Seq: lane.floor + 1, NextFor: laneFilter(p, lane.Agent, lane.Lane)})
	if errors.Is(err, broker.ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	lane.Oldest, lane.floor = oldest.Time.UTC(), oldest.Seq-1
	lane.Waiting, err = j.waitingSince(ctx, p, *lane, oldest)
	return err
}

// waitingSince returns when the first undelivered offer of a lane was queued.
func (j *Engine) waitingSince(ctx context.Context, p int, lane laneState, oldest stored) (time.Time, error) {
	switch {
	case lane.Depth <= lane.Delivered:
		return time.Time{}, nil
	case oldest.Seq > lane.delivered:
		return lane.Oldest, nil
	}
	first, err := j.getMessage(ctx, workStreams[p], getRequest{Seq: lane.delivered + 1, NextFor: laneFilter(p, lane.Agent, lane.Lane)})
	if errors.Is(err, broker.ErrNotFound) { // delivered meanwhile
		return time.Time{}, nil
	}
	return first.Time.UTC(), err
}

// sortQueues sorts by the agents' names, then the most urgent lane first.
func sortQueues(all []broker.QueueStatus) {
	slices.SortFunc(all, func(a, b broker.QueueStatus) int {
		return cmp.Or(strings.Compare(a.Agent, b.Agent), cmp.Compare(laneIndex(a.Lane), laneIndex(b.Lane)))
	})
}

// coveredLanes lists the non-empty lanes that have a consumer, and returns which lanes of each
// agent have one. If no node answers for a consumer (for example because it is being created: then
// the engine waits for it for 4 s), its lane counts as uncovered.
func (j *Engine) coveredLanes(ctx context.Context, p int) (lanes []laneState, covered map[string]int, err error) {
	covered = map[string]int{}
	for offset := 0; ; {
		page, err := j.consumerPage(ctx, workStreams[p], offset)
		if err != nil {
			return nil, nil, err
		}
		for _, c := range page.Consumers {
			agent, lane, ok := parseLaneConsumer(c.Name)
			if !ok || slices.Contains(page.Missing, c.Name) {
				continue
			}
			covered[agent] |= 1 << laneIndex(lane)
			if depth := int(c.Pending) + c.AckPending; depth > 0 {
				lanes = append(lanes, laneState{broker.QueueStatus{Agent: agent, Lane: lane, Depth: depth, Delivered: c.AckPending}, c.AckFloor.Stream, c.Delivered.Stream})
			}
		}
		offset += len(page.Consumers) + len(page.Missing)
		if len(page.Consumers) == 0 || offset >= page.Total {
			return lanes, covered, nil
		}
	}
}

// consumerState is the part of the engine's consumer info that we read.
type consumerState struct {
	Name      string `json:"name"`
	Delivered struct {
		Stream uint64 `json:"stream_seq"`
	} `json:"delivered"`
	AckFloor struct {
		Stream uint64 `json:"stream_seq"`
	} `json:"ack_floor"`
	AckPending int    `json:"num_ack_pending"`
	Pending    uint64 `json:"num_pending"`
}

type consumerPage struct {
	Total     int             `json:"total"`
	Consumers []consumerState `json:"consumers"`
	Missing   []string        `json:"missing"`
	apiAnswer
}

// consumerPage lists the consumers of a stream from an offset on. The library's listing omits those
// that did not answer.
func (j *Engine) consumerPage(ctx context.Context, stream string, offset int) (consumerPage, error) {
	var page consumerPage
	request, err := json.Marshal(map[string]int{"offset": offset})
	if err != nil {
		return page, err
	}
	err = requestAPI(ctx, j.nc, "CONSUMER.LIST."+stream, request, &page)
	return page, err
}

// streamCount is the engine's count of a stream's messages and subjects.
type streamCount struct {
	Total   int       `json:"total"`   // of matching subjects
	Created time.Time `json:"created"` // the stream
	State   struct {
		Messages int               `json:"messages"`
		First    uint64            `json:"first_seq"`
		Last     uint64            `json:"last_seq"`
		Subjects map[string]uint64 `json:"subjects"`
	} `json:"state"`
	apiAnswer
}

// countSubjects requests a stream's subjects under a filter, from an offset on.
func (j *Engine) countSubjects(ctx context.Context, stream, filter string, offset int) (streamCount, error) {
	var info streamCount
	request := `{"subjects_filter":` + strconv.Quote(filter) + `,"offset":` + strconv.Itoa(offset) + `}`
	err := requestAPI(ctx, j.nc, "STREAM.INFO."+stream, []byte(request), &info)
	return info, err
}

// workState is the state of the work stream.
type workState struct {
	first, last uint64 // sequences of offers
	offers      int
	created     time.Time // the stream
}

// workStart returns the state of a work stream. After the sentinel, if it exists, a search is fast.
func (j *Engine) workStart(ctx context.Context, p int) (workState, error) {
	first := workPrefixes[p] + sentinel
	info, err := j.countSubjects(ctx, workStreams[p], first, 0)
	if err != nil {
		return workState{}, err
	}
	start := workState{info.State.First, info.State.Last, info.State.Messages, info.Created}
	if _, exists := info.State.Subjects[first]; exists {
		start.offers--
		if message, err := j.getMessage(ctx, workStreams[p], getRequest{LastFor: first}); err == nil && message.Seq == start.first {
			start.first++
		}
	}
	return start, nil
}

// uncoveredLanes finds the offers of agents that no consumer covers: of registered agents, of a
// person, and of agents that have consumers for other lanes. The stream counts its subjects, one
// per offer.
func (j *Engine) uncoveredLanes(ctx context.Context, p int, covered map[string]int) ([]laneState, error) {
	agents, err := j.countSubjects(ctx, agentStream, agentPrefix+"*", 0)
	if err != nil && !hasCode(err, codeNoStream) {
		return nil, err
	}
	names := map[string]bool{protocol.Human: true}
	for subject := range agents.State.Subjects {
		if name, ok := lastToken(subject, agentPrefix); ok && name != protocol.FleetKey {
			names[name] = true
		}
	}
	for name := range covered {
		names[name] = true
	}
	const everyLane = 1<<4 - 1
	var lanes []laneState
	for name := range names {
		if covered[name] == everyLane || j.queueIn(name) != p {
			continue
		}
		info, err := j.countSubjects(ctx, workStreams[p], workPrefixes[p]+name+".*.*.*", subjectsMax)
		if err != nil {
			return nil, err
		}
		if info.Total == 0 {
			continue
		}
		for i, lane := range protocol.Priorities {
			if covered[name]&(1<<i) != 0 {
				continue
			}
			info, err := j.countSubjects(ctx, workStreams[p], laneFilter(p, name, lane), subjectsMax)
			if err != nil {
				return nil, err
			}
			if info.Total > 0 {
				lanes = append(lanes, laneState{QueueStatus: broker.QueueStatus{Agent: name, Lane: lane, Depth: info.Total}})
			}
		}
	}
	return lanes, nil
}

// RemoveOffer implements broker.Engine. It looks up the offer at the stream's leader and removes it
// by its sequence, which no later offer has, so a late removal affects no other offer.
func (j *Engine) RemoveOffer(ctx context.Context, key broker.OfferKey) error {
	for _, p := range j.parts.Load().places(key.Agent, j.Now()) {
		offer, err := j.getMessage(ctx, workStreams[p], getRequest{LastFor: workSubject(p, key)})
		if err == nil {
			if err = j.removeStored(ctx, p, offer.Seq); err != nil { // an acknowledgement may have removed it meanwhile
				if _, after := j.getMessage(ctx, workStreams[p], getRequest{Seq: offer.Seq}); errors.Is(after, broker.ErrNotFound) {
					err = nil
				}
			}
		}
		if err != nil && !errors.Is(err, broker.ErrNotFound) && !hasCode(err, codeNoStream) { // a recreated stream has no ended offer
			return fmt.Errorf("remove offer %s of %s: %w", key.Ticket, key.Agent, err)
		}
	}
	return nil
}

// removeStored removes an offer by its sequence in a work stream.
func (j *Engine) removeStored(ctx context.Context, p int, sequence uint64) error {
	return j.retryWithTimeout(ctx, func(ctx context.Context) error {
		return requestAPI(ctx, j.nc, removeRequest+workStreams[p], removeBody(sequence), &apiAnswer{})
	})
}

// Offers implements broker.Engine: the stream's subjects.
func (j *Engine) Offers(ctx context.Context, agent string, fn func(broker.OfferKey) error) error {
	var err error
	for p := 0; p < j.partitions() && err == nil; p++ {
		err = j.eachSubject(ctx, workStreams[p], workPrefixes[p]+cmp.Or(agent, "*")+".*.*.*", func(subject string) error {
			if key, ok := parseWorkSubject(subject); ok {
				if err := fn(key); err != nil {
					return &callerError{err}
				}
			}
			return nil
		})
	}
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
	next := make([]stored, j.partitions()) // of each partition the first offer that fn did not get; the zero value is none
	read := func(p int, request getRequest) error {
		request.NextFor = workPrefixes[p] + "*.*.*.*"
		msg, err := j.getMessage(ctx, workStreams[p], request)
		switch {
		case errors.Is(err, broker.ErrNotFound):
			msg = stored{}
		case err != nil:
			return fmt.Errorf("offers from %v: %w", from, err)
		case !msg.Time.Before(until):
			msg = stored{}
		}
		next[p] = msg
		return nil
	}
	if err := j.eachPartition(func(p int) error {
		if p >= len(next) { // it was added meanwhile
			return nil
		}
		return read(p, getRequest{StartTime: &from})
	}); err != nil {
		return err
	}
	for {
		first := -1
		for p, msg := range next {
			if msg.Seq > 0 && (first < 0 || msg.Time.Before(next[first].Time)) {
				first = p
			}
		}
		if first < 0 {
			return nil
		}
		if key, ok := parseWorkSubject(next[first].Subject); ok {
			if err := fn(key, next[first].Time); err != nil {
				return err
			}
		}
		if err := read(first, getRequest{Seq: next[first].Seq + 1}); err != nil {
			return err
		}
	}
}

// LoadEntry is a ledger entry to be written.
type LoadEntry struct {
	Ticket string
	After  uint64 // the sequence of the ticket's previous entry; 0 for its first
	ID     string // the record's
	Body   []byte // a protocol.Record
	Seq    uint64 // its future sequence
}

const (
	// loadAhead is how many entries are in flight.
	loadAhead = 4_096
	// loadPatience bounds the wait for the last of them.
	loadPatience = time.Minute
)

// Load stores entries without waiting for each answer, to fill a ledger. It has one partition, and no
// other client writes to it. Their sequences are known in advance, because they follow the ledger's end without a gap. An
// entry that gets another sequence, or whose compare-and-set fails, ends Load with an error, and
// the entries in flight may have been stored. Load makes no offers and timers: a supervisor's next
// pass does it for open handoffs.
func (j *Engine) Load(ctx context.Context, entries iter.Seq2[LoadEntry, error]) error {
	js, err := jetstream.New(j.nc, jetstream.WithPublishAsyncMaxPending(loadAhead))
	if err != nil {
		return err
	}
	defer js.CleanupPublisher()
	patience := time.NewTimer(loadPatience)
	defer patience.Stop()
	var under []loading
	settle := func(most int) error {
		patience.Reset(loadPatience)
		for len(under) > most {
			if err := under[0].settle(ctx, patience); err != nil {
				return err
			}
			under = under[1:]
		}
		return nil
	}
	for e, err := range entries {
		if err != nil {
			return err
		}
		msg := nats.NewMsg(ledgerSubject(0, e.Ticket))
		msg.Data = e.Body
		msg.Header[jetstream.ExpectedLastSubjSeqHeader] = []string{strconv.FormatUint(e.After, 10)}
		msg.Header[jetstream.ExpectedStreamHeader] = []string{LedgerStream}
		msg.Header[recordHeader] = []string{e.ID}
		ack, err := js.PublishMsgAsync(msg, jetstream.WithStallWait(loadPatience))
		if err != nil {
			return fmt.Errorf("load %s at %d: %w", e.Ticket, e.Seq, err)
		}
		e.Body = nil // the connection has copied it
		if under = append(under, loading{ack, e}); len(under) >= loadAhead {
			if err := settle(loadAhead / 2); err != nil {
				return err
			}
		}
	}
	return settle(0)
}

// loading is an entry in flight.
type loading struct {
	ack   jetstream.PubAckFuture
	entry LoadEntry
}

func (l loading) settle(ctx context.Context, patience *time.Timer) error {
	select {
	case ack := <-l.ack.Ok():
		if ack.Sequence != l.entry.Seq {
			return fmt.Errorf("entry of %s was stored at %d, not at %d: another client writes to the ledger", l.entry.Ticket, ack.Sequence, l.entry.Seq)
		}
		return nil
	case err := <-l.ack.Err():
		return fmt.Errorf("load %s at %d: %w", l.entry.Ticket, l.entry.Seq, err)
	case <-patience.C:
		return fmt.Errorf("load %s at %d: %w", l.entry.Ticket, l.entry.Seq, broker.ErrUnreachable)
	case <-ctx.Done():
		return ctx.Err()
	}
}

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
	err := j.retryEach(ctx, queuesTry, func(ctx context.Context) (err error) {
		all, err = j.queues(ctx)
		if hasCode(err, codeNoStream) { // it will be recreated and filled
			all, err = nil, nil
		}
		return err
	})
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

func (j *Engine) queues(ctx context.Context) ([]broker.QueueStatus, error) {
	connection := j.connectionCount.Load()
	lanes, covered, err := j.coveredLanes(ctx)
	if err != nil {
		return nil, err
	}
	first, messages, created, err := j.workStart(ctx)
	if err != nil {
		return nil, err
	}
	next := laneFirsts{created: created, connection: connection, of: map[string]uint64{}}
	known := j.firsts.Load()
	if known == nil || !known.created.Equal(created) || known.connection != connection {
		known = &next
	}
	standing := 0
	for _, lane := range lanes {
		standing += lane.Depth
	}
	if messages > standing {
		others, err := j.uncoveredLanes(ctx, covered)
		if err != nil {
			return nil, err
		}
		lanes = append(lanes, others...)
	}
	var group errgroup.Group
	group.SetLimit(lanesAtOnce)
	for i := range lanes {
		lane := &lanes[i]
		lane.floor = max(lane.floor+1, first, known.of[laneFilter(lane.Agent, lane.Lane)]) - 1
		group.Go(func() error { return j.age(ctx, lane) })
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	all := make([]broker.QueueStatus, 0, len(lanes))
	for _, lane := range lanes {
		if !lane.Oldest.IsZero() {
			all = append(all, lane.QueueStatus)
			next.of[laneFilter(lane.Agent, lane.Lane)] = lane.floor + 1
		}
	}
	j.firsts.Store(&next)
	sortQueues(all)
	return all, nil
}

// laneFirsts are the sequences of the first offers of lanes, by their filters. In one stream no offer comes to
// a lane before its first one, so the next search for that begins there: the engine scans all offers up to
// it. They hold for a stream, and for a connection: an engine that restarts may have lost its last offers.
type laneFirsts struct {
	created    time.Time // the stream
	connection uint64
	of         map[string]uint64
}

// age reads when the first offers of a lane were queued; none is left if meanwhile the last one was taken.
// The search begins at the floor, so that the engine finds the first offer without scanning all subjects
// of a deep queue.
func (j *Engine) age(ctx context.Context, lane *laneState) error {
	oldest, err := j.getMessage(ctx, WorkStream, getRequest{Seq: lane.floor + 1, NextFor: laneFilter(lane.Agent, lane.Lane)})
	if errors.Is(err, broker.ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	lane.Oldest, lane.floor = oldest.Time.UTC(), oldest.Seq-1
	lane.Waiting, err = j.waitingSince(ctx, *lane, oldest)
	return err
}

// waitingSince returns when the first undelivered offer of a lane was queued.
func (j *Engine) waitingSince(ctx context.Context, lane laneState, oldest stored) (time.Time, error) {
	switch {
	case lane.Depth <= lane.Delivered:
		return time.Time{}, nil
	case oldest.Seq > lane.delivered:
		return lane.Oldest, nil
	}
	first, err := j.getMessage(ctx, WorkStream, getRequest{Seq: lane.delivered + 1, NextFor: laneFilter(lane.Agent, lane.Lane)})
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
func (j *Engine) coveredLanes(ctx context.Context) (lanes []laneState, covered map[string]int, err error) {
	covered = map[string]int{}
	for offset := 0; ; {
		page, err := j.consumerPage(ctx, WorkStream, offset)
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
	Name    string `json:"name"`
	Created time.Time
	Config  struct {
		AckWait       time.Duration `json:"ack_wait"`
		MaxAckPending int           `json:"max_ack_pending"`
		MaxWaiting    int           `json:"max_waiting"`
		MaxDeliver    int           `json:"max_deliver"`
		Paused        time.Time     `json:"pause_until"`
	} `json:"config"`
	Delivered struct {
		Stream uint64    `json:"stream_seq"`
		Last   time.Time `json:"last_active"`
	} `json:"delivered"`
	AckFloor struct {
		Stream uint64 `json:"stream_seq"`
	} `json:"ack_floor"`
	AckPending  int    `json:"num_ack_pending"`
	Redelivered int    `json:"num_redelivered"`
	Waiting     int    `json:"num_waiting"`
	Pending     uint64 `json:"num_pending"`
	Paused      bool   `json:"paused"`
}

type consumerPage struct {
	Total     int             `json:"total"`
	Consumers []consumerState `json:"consumers"`
	Missing   []string        `json:"missing"`
	Error     *apiError       `json:"error"`
}

// consumerPage lists the consumers of a stream from an offset on. The library's listing omits those
// that did not answer.
func (j *Engine) consumerPage(ctx context.Context, stream string, offset int) (consumerPage, error) {
	var page consumerPage
	request, err := json.Marshal(map[string]int{"offset": offset})
	if err != nil {
		return page, err
	}
	if err := j.requestJSON(ctx, apiPrefix+"CONSUMER.LIST."+stream, request, &page); err != nil {
		return page, err
	}
	if page.Error != nil {
		return page, page.Error
	}
	return page, nil
}

// streamCount is the engine's count of a stream's messages and subjects.
type streamCount struct {
	Total   int       `json:"total"`   // of matching subjects
	Created time.Time `json:"created"` // the stream
	State   struct {
		Messages int               `json:"messages"`
		First    uint64            `json:"first_seq"`
		Subjects map[string]uint64 `json:"subjects"`
	} `json:"state"`
	Error *apiError `json:"error"`
}

// countSubjects requests a stream's subjects under a filter, from an offset on.
func (j *Engine) countSubjects(ctx context.Context, stream, filter string, offset int) (streamCount, error) {
	var info streamCount
	request := `{"subjects_filter":` + strconv.Quote(filter) + `,"offset":` + strconv.Itoa(offset) + `}`
	if err := j.requestJSON(ctx, apiPrefix+"STREAM.INFO."+stream, []byte(request), &info); err != nil {
		return info, err
	}
	if info.Error != nil {
		return info, info.Error
	}
	return info, nil
}

// workStart returns the first sequence of offers in the work stream, their number, and when the stream was
// created. After the sentinel, if it exists, a search is fast.
func (j *Engine) workStart(ctx context.Context) (first uint64, offers int, created time.Time, err error) {
	info, err := j.countSubjects(ctx, WorkStream, sentinelSubject, 0)
	if err != nil {
		return 0, 0, created, err
	}
	first, offers = info.State.First, info.State.Messages
	if _, stands := info.State.Subjects[sentinelSubject]; stands {
		offers--
		if message, err := j.getMessage(ctx, WorkStream, getRequest{LastFor: sentinelSubject}); err == nil && message.Seq == first {
			first++
		}
	}
	return first, offers, info.Created, nil
}

// uncoveredLanes finds the offers of agents that no consumer covers: of registered agents, of a
// person, and of agents that have consumers for other lanes. The stream counts its subjects, one
// per offer.
func (j *Engine) uncoveredLanes(ctx context.Context, covered map[string]int) ([]laneState, error) {
	agents, err := j.countSubjects(ctx, agentStream, agentPrefix+">", 0)
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
		if covered[name] == everyLane {
			continue
		}
		info, err := j.countSubjects(ctx, WorkStream, workPrefix+name+".*.*.*", subjectsMax)
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
			info, err := j.countSubjects(ctx, WorkStream, laneFilter(name, lane), subjectsMax)
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
	offer, err := j.getMessage(ctx, WorkStream, getRequest{LastFor: workSubject(key)})
	if err == nil {
		if err = j.removeStored(ctx, offer.Seq); err != nil { // an acknowledgement may have removed it meanwhile
			if _, after := j.getMessage(ctx, WorkStream, getRequest{Seq: offer.Seq}); errors.Is(after, broker.ErrNotFound) {
				err = nil
			}
		}
	}
	if err == nil || errors.Is(err, broker.ErrNotFound) || hasCode(err, codeNoStream) { // a recreated stream has no ended offer
		return nil
	}
	return fmt.Errorf("remove offer %s of %s: %w", key.Ticket, key.Agent, err)
}

// removeStored removes an offer by its sequence in the work stream.
func (j *Engine) removeStored(ctx context.Context, sequence uint64) error {
	return j.retryWithTimeout(ctx, func(ctx context.Context) error {
		var answer struct {
			Error *apiError `json:"error"`
		}
		if err := j.requestJSON(ctx, removeSubject, removeBody(sequence), &answer); err != nil {
			return err
		}
		if answer.Error != nil {
			return answer.Error
		}
		return nil
	})
}

// Offers implements broker.Engine: the stream's subjects.
func (j *Engine) Offers(ctx context.Context, agent string, fn func(broker.OfferKey) error) error {
	err := j.eachSubject(ctx, WorkStream, workPrefix+cmp.Or(agent, "*")+".*.*.*", func(subject string) error {
		if key, ok := parseWorkSubject(subject); ok {
			if err := fn(key); err != nil {
				return &callerError{err}
			}
		}
		return nil
	})
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
	for request := (getRequest{StartTime: &from, NextFor: workPrefix + "*.*.*.*"}); ; {
		msg, err := j.getMessage(ctx, WorkStream, request)
		switch {
		case errors.Is(err, broker.ErrNotFound):
			return nil
		case err != nil:
			return fmt.Errorf("offers from %v: %w", from, err)
		case !msg.Time.Before(until):
			return nil
		}
		if key, ok := parseWorkSubject(msg.Subject); ok {
			if err := fn(key, msg.Time); err != nil {
				return err
			}
		}
		request.StartTime, request.Seq = nil, msg.Seq+1
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

// Load stores entries without waiting for each answer, to fill a ledger that no other client writes
// to. Their sequences are known in advance, because they follow the ledger's end without a gap. An
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
		msg := nats.NewMsg(ledgerSubject(e.Ticket))
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

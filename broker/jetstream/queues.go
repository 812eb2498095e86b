package jetstream

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/protocol"
)

const (
	// queuesTry is how long one try of a request of Queues may take. In a cluster the
	// engine itself gathers for up to 4 s from nodes that do not speak.
	queuesTry = 6 * time.Second
	// subjectsMax is more than any stream has subjects: an offset that asks the
	// engine to count them and to name none.
	subjectsMax = 1_000_000_000
)

// Queues implements broker.Engine. With 200 agents it takes 6 requests and one for each
// lane that has anything: consumers are listed 256 at a time. Only while offers
// stand that no consumer covers (a single node that restarted has forgotten them,
// until workers come) it asks besides for each agent that has none.
func (j *Engine) Queues(ctx context.Context) ([]broker.QueueStatus, error) {
	ctx, cancel := context.WithTimeout(ctx, j.cfg.Timeout)
	defer cancel()
	var all []broker.QueueStatus
	err := j.retryEach(ctx, queuesTry, func(ctx context.Context) (err error) {
		all, err = j.queues(ctx)
		if hasCode(err, codeNoStream) { // it will be made again, and filled
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
	return nil, fmt.Errorf("how the queues stand: %w", err)
}

// laneState is a lane with the sequence up to which nothing stands in it, and the
// one up to which everything was delivered.
type laneState struct {
	broker.QueueStatus
	floor, delivered uint64
}

func (j *Engine) queues(ctx context.Context) ([]broker.QueueStatus, error) {
	lanes, covered, err := j.coveredLanes(ctx)
	if err != nil {
		return nil, err
	}
	first, messages, err := j.workStart(ctx)
	if err != nil {
		return nil, err
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
	all := make([]broker.QueueStatus, 0, len(lanes))
	for _, lane := range lanes {
		// From the floor on, so that the engine finds the first offer without
		// walking through all of a deep queue's subjects.
		oldest, err := j.getMessage(ctx, WorkStream, getRequest{Seq: max(lane.floor+1, first), NextFor: laneFilter(lane.Agent, lane.Lane)})
		if errors.Is(err, broker.ErrNotFound) {
			continue // the last one was taken meanwhile
		}
		if err != nil {
			return nil, err
		}
		lane.Oldest = oldest.Time.UTC()
		if lane.Waiting, err = j.waitingSince(ctx, lane, oldest); err != nil {
			return nil, err
		}
		all = append(all, lane.QueueStatus)
	}
	sortQueues(all)
	return all, nil
}

// waitingSince finds when the first offer of a lane was put that no worker was given.
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

// sortQueues puts agents in the order of their names, the most urgent lane first.
func sortQueues(all []broker.QueueStatus) {
	slices.SortFunc(all, func(a, b broker.QueueStatus) int {
		return cmp.Or(strings.Compare(a.Agent, b.Agent), cmp.Compare(laneIndex(a.Lane), laneIndex(b.Lane)))
	})
}

// coveredLanes lists the lanes that have a consumer and something in it, and
// tells which agents have a consumer for every lane. Of a consumer that no node
// answers for (it is just being made, say: then the engine waits for it for 4 s),
// the lane counts as uncovered.
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

// consumerState is what the engine says of a consumer, as far as we read it.
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

// consumerPage lists the consumers of a stream from an offset on. The library's
// listing has no word about the ones that did not answer.
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

// streamCount is what the engine says of a stream's messages and subjects.
type streamCount struct {
	Total int `json:"total"` // of subjects that match
	State struct {
		Messages int               `json:"messages"`
		First    uint64            `json:"first_seq"`
		Subjects map[string]uint64 `json:"subjects"`
	} `json:"state"`
	Error *apiError `json:"error"`
}

// countSubjects asks a stream for its subjects under a filter, from an offset on.
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

// workStart is the sequence from which on the work stream has offers, and how
// many it has. Behind the sentinel, where that stands, a search is quick.
func (j *Engine) workStart(ctx context.Context) (first uint64, offers int, err error) {
	info, err := j.countSubjects(ctx, WorkStream, sentinelSubject, 0)
	if err != nil {
		return 0, 0, err
	}
	first, offers = info.State.First, info.State.Messages
	if _, stands := info.State.Subjects[sentinelSubject]; stands {
		offers--
		if message, err := j.getMessage(ctx, WorkStream, getRequest{LastFor: sentinelSubject}); err == nil && message.Seq == first {
			first++
		}
	}
	return first, offers, nil
}

// uncoveredLanes finds the offers of agents that no consumer covers: of those
// that are registered, of a person, and of those that have consumers for other
// lanes. The stream counts its subjects, one an offer.
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

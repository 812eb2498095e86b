package index

import (
	"cmp"
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"math/bits"
	"slices"

	"github.com/agenthandoff/handoff/internal/index/ask"
	"github.com/agenthandoff/handoff/protocol"
)

// figuresTopDefault is how many rows a table has by default.
const figuresTopDefault = 10

// Figures returns rates, durations and refusals of the handoffs that a filter selects. It reads
// the rows of all of them.
func (ix *Index) Figures(ctx context.Context, q ask.FiguresQuery) (ask.FiguresAnswer, error) {
	if err := q.Validate(); err != nil {
		return ask.FiguresAnswer{}, err
	}
	top := cmp.Or(q.Top, figuresTopDefault)
	return read(ctx, ix, q.Question, func(v view, a *ask.FiguresAnswer) error {
		sums := newSums()
		rows, err := v.selectionOf(q.Filter)
		if err == nil {
			err = v.sumRows(rows, sums)
		}
		*a = sums.answer(v.st, top)
		return err
	})
}

// figureTables collects figures from rows.
type figureTables struct {
	all       *sum
	agents    map[int32]*sum
	pairs     map[[2]int32]*sum
	types     map[int32]*sum
	refusals  map[refusal]int64
	workflows map[string]int64
	variants  map[string]*sum
	governed  governanceSums
}

type refusal struct {
	agent  int32
	reason string
}

// sum adds up one row of a table.
type sum struct {
	f ask.Figures

	queue, work, whole histogram
}

func newSums() *figureTables {
	return &figureTables{all: &sum{}, agents: map[int32]*sum{}, pairs: map[[2]int32]*sum{}, types: map[int32]*sum{},
		refusals: map[refusal]int64{}, workflows: map[string]int64{}, variants: map[string]*sum{}, governed: newGovernanceSums()}
}

// figuresRow has the columns of a handoff that figures need.
type figuresRow struct {
	source, target     int32
	agent              int32
	outcome, kind      int
	queue, work, whole *int64
	attempts           int64
	tokens, cost       int64
	accepts            int64
}

// sumRows adds up the rows of a selection.
func (v view) sumRows(of selection, s *figureTables) error {
	query := fmt.Sprintf(`SELECT h.source, h.target, h.agent, h.outcome, h.type, h.attempts, h.tokens, h.cost,
		h.queue_ms, h.work_ms, h.whole_ms, h.accepts, h.acks, h.workflow, h.variant, h.gate, h.governed, h.others FROM %s WHERE %s`, of.from, of.where())
	return v.each(func(rows *sql.Rows) error {
		var m figuresRow
		var acks, workflow, variant, governed, others sql.NullString
		var gate int
		err := rows.Scan(&m.source, &m.target, &m.agent, &m.outcome, &m.kind, &m.attempts, &m.tokens, &m.cost,
			&m.queue, &m.work, &m.whole, &m.accepts, &acks, &workflow, &variant, &gate, &governed, &others)
		if err != nil {
			return err
		}
		own := []ackRow{{Agent: m.agent, Accepted: m.accepts}}
		if acks.Valid {
			if err := json.Unmarshal([]byte(acks.String), &own); err != nil {
				return damagef("acknowledgements: %w", err)
			}
		}
		if workflow.Valid {
			s.workflows[workflow.String]++
		}
		if err := s.governed.add(m.agent, gate, governed); err != nil {
			return err
		}
		var usedByOthers []protocol.UsedBy
		if others.Valid {
			if err := json.Unmarshal([]byte(others.String), &usedByOthers); err != nil {
				return damagef("usage of other agents: %w", err)
			}
		}
		s.add(m, own, variant.String)
		for _, by := range usedByOthers {
			if agent, known := v.st.names.find(by.Agent); known && agent != m.agent {
				s.usedBy(agent, m, by.Usage)
			}
		}
		return nil
	}, query, of.args...)
}

// add adds a handoff. Acknowledgements count for their agent, all else for the agent that has the
// handoff, or had it last.
func (s *figureTables) add(m figuresRow, acks []ackRow, variant string) {
	whole := []*sum{s.all, sumFor(s.pairs, [2]int32{m.source, m.target}), sumFor(s.types, int32(m.kind))}
	if variant != "" {
		whole = append(whole, sumFor(s.variants, variant))
	}
	for _, of := range append(whole, sumFor(s.agents, m.agent)) {
		of.add(m)
	}
	for _, ack := range acks {
		if ack.Accepted == 0 && ack.Refused == 0 {
			continue
		}
		for _, of := range append(whole, sumFor(s.agents, ack.Agent)) {
			of.f.Accepted += ack.Accepted
			of.f.Refused += ack.Refused
		}
		if ack.Refused > 0 {
			s.refusals[refusal{ack.Agent, ack.Reason}] += ack.Refused
		}
	}
}

// usedBy counts the use of an agent for a handoff that another one has.
func (s *figureTables) usedBy(agent int32, m figuresRow, used protocol.Usage) {
	from, to := sumFor(s.agents, m.agent), sumFor(s.agents, agent)
	from.count(-used.Tokens, -used.CostMicros)
	to.count(used.Tokens, used.CostMicros)
	if m.outcome != 0 {
		to.f.Reported++
	}
}

// count adds up the use.
func (s *sum) count(tokens, cost int64) {
	if s.f.Tokens == nil {
		s.f.Tokens, s.f.CostMicros = new(int64), new(int64)
	}
	*s.f.Tokens += tokens
	*s.f.CostMicros += cost
}

func sumFor[K comparable](table map[K]*sum, key K) *sum {
	of := table[key]
	if of == nil {
		of = &sum{}
		table[key] = of
	}
	return of
}

func (s *sum) add(m figuresRow) {
	s.f.Handoffs++
	switch outcome := outcomes.word(m.outcome); {
	case m.outcome == 0:
		s.f.Open++
	case outcome == protocol.OutcomeSuccess, outcome == protocol.OutcomePartial:
		s.f.Succeeded++
	default:
		s.f.Failed++
	}
	s.f.Attempts += m.attempts
	if m.tokens+m.cost > 0 { // else it is not known
		s.count(m.tokens, m.cost)
		if m.outcome != 0 {
			s.f.Reported++
		}
	}
	s.queue.add(m.queue)
	s.work.add(m.work)
	s.whole.add(m.whole)
}

func (s *figureTables) answer(st *store, top int) ask.FiguresAnswer {
	a := ask.FiguresAnswer{All: s.all.figures(""), ByAgent: []ask.Figures{}, ByPair: []ask.Figures{}, ByType: []ask.Figures{}, ByVariant: []ask.Figures{},
		Refusals: []ask.RefusalCount{}, Workflows: []ask.CountGroup{}}
	for agent, of := range s.agents {
		if agent != 0 { // a group has none
			a.ByAgent = append(a.ByAgent, of.figures(st.names.textOf(agent)))
		}
	}
	for pair, of := range s.pairs {
		a.ByPair = append(a.ByPair, of.figures(st.names.textOf(pair[0])+" -> "+st.names.textOf(pair[1])))
	}
	for kind, of := range s.types {
		a.ByType = append(a.ByType, of.figures(string(types.word(int(kind)))))
	}
	for variant, of := range s.variants {
		a.ByVariant = append(a.ByVariant, of.figures(variant))
	}
	for r, n := range s.refusals {
		a.Refusals = append(a.Refusals, ask.RefusalCount{Agent: st.names.textOf(r.agent), Reason: r.reason, Count: n})
	}
	for id, n := range s.workflows {
		a.Workflows = append(a.Workflows, ask.CountGroup{Values: []string{id}, Count: n})
	}
	for _, table := range []*[]ask.Figures{&a.ByAgent, &a.ByPair, &a.ByType, &a.ByVariant} {
		*table = firstOf(*table, top, func(x, y ask.Figures) int {
			return cmp.Or(cmp.Compare(y.Handoffs, x.Handoffs), cmp.Compare(x.Key, y.Key))
		})
	}
	a.Refusals = firstOf(a.Refusals, top, func(x, y ask.RefusalCount) int {
		return cmp.Or(cmp.Compare(y.Count, x.Count), cmp.Compare(x.Agent, y.Agent), cmp.Compare(x.Reason, y.Reason))
	})
	a.Workflows = firstOf(a.Workflows, top, largestFirst)
	s.governed.answer(st, top, &a)
	return a
}

func (s *sum) figures(key string) ask.Figures {
	f := s.f
	f.Key = key
	f.Success = rate(f.Succeeded, f.Succeeded+f.Failed)
	f.Acceptance = rate(f.Accepted, f.Accepted+f.Refused)
	f.Queue, f.Work, f.Whole = s.queue.durations(), s.work.durations(), s.whole.durations()
	return f
}

// firstOf sorts rows of a table, and returns the first ones.
func firstOf[R any](rows []R, most int, order func(x, y R) int) []R {
	slices.SortFunc(rows, order)
	return rows[:min(len(rows), most)]
}

func rate(part, whole int64) *float64 {
	if whole == 0 {
		return nil
	}
	r := float64(part) / float64(whole)
	return &r
}

// histogram counts durations: exactly below 256 ms, above by their eight highest bits, so that a
// percentile is at most 0.8 % too low.
type histogram struct {
	counts map[int64]int64 // by the lowest duration of a bar
	total  int64
	sum    int64
}

const exactBits = 8

func (h *histogram) add(ms *int64) {
	if ms == nil {
		return
	}
	if h.counts == nil {
		h.counts = map[int64]int64{}
	}
	low := max(*ms, 0)
	h.sum += low
	if over := bits.Len64(uint64(low)) - exactBits; over > 0 {
		low = low >> over << over
	}
	h.counts[low]++
	h.total++
}

func (h *histogram) durations() ask.Durations {
	d := ask.Durations{Count: h.total}
	if h.total == 0 {
		return d
	}
	bars := make([]int64, 0, len(h.counts))
	for low := range h.counts {
		bars = append(bars, low)
	}
	slices.Sort(bars)
	at := func(percent int64) int64 {
		rank, seen := (h.total*percent+99)/100, int64(0)
		for _, low := range bars {
			if seen += h.counts[low]; seen >= rank {
				return low
			}
		}
		return bars[len(bars)-1]
	}
	d.Mean = h.sum / h.total
	d.P50, d.P95, d.P99 = at(50), at(95), at(99)
	return d
}

package broker

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/agenthandoff/handoff/internal/lifecycle"
	"github.com/agenthandoff/handoff/protocol"
)

// Rules turn signals into handoffs. A signal is removed once each rule for it has decided. Its handoff
// is submitted under a key that has its id: a signal that is delivered again, because its supervisor
// died, or that was sent again begins no other handoff.
type Rules struct{ records[protocol.Rule] }

// Rules returns the rules of the fleet.
func (b *Broker) Rules() Rules {
	return Rules{records[protocol.Rule]{b: b, kind: RuleRecord, body: TemplateRecord, largest: "if", bytesMax: protocol.RuleBytesMax,
		most: protocol.RulesMax, decode: RuleIn, count: func(d *lifecycle.Directory) int { return len(d.Rules) }}}
}

// ErrSignalsFull is the refusal of a signal by an engine that has too many.
var ErrSignalsFull = protocol.Errorf(protocol.CodeBusy, "name", "too many signals wait: at most %d, and %d of one name; send it again later", SignalsMax, SignalsOfNameMax)

// RuleIn decodes the record of a rule.
func RuleIn(name string, body []byte) (protocol.Rule, error) {
	return EntryIn("rule", name, body, protocol.RuleBytesMax, func(r *protocol.Rule) string { return r.Name })
}

// Put creates a rule, or replaces its fields and its template. Its counts and its pause remain.
func (c Rules) Put(ctx context.Context, r protocol.Rule, template json.RawMessage) (protocol.Rule, error) {
	now := c.b.Now().UTC().Truncate(time.Millisecond)
	if err := r.Validate(); err != nil {
		return r, err
	}
	if err := c.check(ctx, r.Name, template); err != nil {
		return r, BelowPackage(err)
	}
	var compact bytes.Buffer
	if err := json.Compact(&compact, template); err != nil {
		return r, err
	}
	return c.replace(ctx, r.Name, compact.Bytes(), func(next protocol.Rule, exists bool) protocol.Rule {
		if !exists {
			next = r
			next.CreatedAt = now
		}
		next.Signal, next.If, next.Rate, next.By, next.UpdatedAt = r.Signal, r.If, r.Rate, r.By, now
		return next
	})
}

// ownFields are the fields of a package that each handoff of a rule has for itself.
var ownFields = []string{"source", "key", "created_at", "start_at", "constraints.deadline", "parent"}

const ownOfRule = "is of each handoff of a rule: leave it out"

// probes are the values that stand for one from a payload when a template is checked.
var probes = []any{"x", 1, true, []any{}, map[string]any{}}

// check refuses a template that no payload makes a package of, by the field of the package. The values
// that come from a payload are tried; if all are refused, only a payload can decide.
func (c Rules) check(ctx context.Context, name string, template json.RawMessage) error {
	if len(template) > protocol.TemplateBytesMax {
		return protocol.Errorf(protocol.CodeTooLarge, "", "%s; hand large files over as artifacts", protocol.OverSize(len(template), protocol.TemplateBytesMax))
	}
	tried := map[string]int{}
	for {
		body, err := protocol.MapTemplate(template, func(field, _ string) (any, error) {
			if slices.Contains(ownFields, field) {
				return nil, protocol.Errorf(protocol.CodeConflict, field, ownOfRule)
			}
			tried[field] += 0
			return probes[tried[field]], nil
		})
		if err != nil {
			return err
		}
		_, err = c.prepare(ctx, name, "check", body, "", true)
		var refused *protocol.Error
		if !errors.As(err, &refused) {
			return err
		}
		mayBe, next := false, ""
		for field, n := range tried {
			if concerns(field, refused.Field) {
				mayBe = true
				if n+1 < len(probes) && (next == "" || field < next) {
					next = field
				}
			}
		}
		switch {
		case !mayBe:
			return err
		case next == "":
			return nil
		}
		tried[next]++
	}
}

// concerns reports whether one of two fields is the other, or within it.
func concerns(a, b string) bool {
	if len(a) > len(b) {
		a, b = b, a
	}
	rest, is := strings.CutPrefix(b, a)
	return is && (rest == "" || a == "" || rest[0] == '.' || rest[0] == '[')
}

// prepare prepares the package of a signal. With look it also refuses a target that no agent has.
func (c Rules) prepare(ctx context.Context, name, id string, body json.RawMessage, parent string, look bool) (Prepared, error) {
	pkg, err := protocol.DecodePackage(body)
	if err == nil {
		err = refuseOwn(pkg, protocol.SignalSource, ownOfRule)
	}
	if err != nil {
		return Prepared{}, err
	}
	pkg.Source, pkg.Key, pkg.Parent = protocol.SignalSource, protocol.SignalKey(name, id), parent
	if pkg, err = c.b.Inherit(ctx, pkg); err != nil {
		return Prepared{}, err
	}
	in, err := c.b.Prepare(ctx, pkg)
	if err == nil && look {
		err = c.b.checkAgent(ctx, in)
	}
	return in, err
}

// Send stores a signal. After it returns nil, a supervisor will turn the signal into the handoffs of its
// rules. Sending it again with the same id begins none.
func (c Rules) Send(ctx context.Context, s protocol.Signal) error {
	if err := s.Validate(); err != nil {
		return err
	}
	return c.b.engine.PutSignal(ctx, s)
}

// Unknown returns the count of the signals whose name no rule has.
func (c Rules) Unknown(ctx context.Context) (u protocol.UnknownSignals, err error) {
	u, _, err = c.unknown(ctx)
	return u, err
}

// Waiting counts the signals that are stored.
func (c Rules) Waiting(ctx context.Context) (int, error) { return c.b.engine.SignalsWaiting(ctx) }

func (c Rules) unknown(ctx context.Context) (u protocol.UnknownSignals, rev uint64, err error) {
	body, rev, err := c.b.engine.Record(ctx, RecordKey{SignalsRecord, UnknownName})
	if err == nil && body != nil && json.Unmarshal(body, &u) != nil {
		u = protocol.UnknownSignals{} // damaged: it counts from 0
	}
	return u, rev, err
}

func (c Rules) countUnknown(ctx context.Context, n int, last string) error {
	_, err := changeRecord(ctx, UnknownName, func(ctx context.Context, _ string) (protocol.UnknownSignals, uint64, error) {
		return c.unknown(ctx)
	}, func(ctx context.Context, name string, u protocol.UnknownSignals, rev uint64) error {
		body, err := json.Marshal(u)
		if err == nil {
			_, err = c.b.engine.PutRecord(ctx, RecordKey{SignalsRecord, name}, body, rev)
		}
		return err
	}, func(u protocol.UnknownSignals) (protocol.UnknownSignals, bool) {
		return protocol.UnknownSignals{Count: u.Count + n, Name: last, LastAt: c.b.Now().UTC().Truncate(time.Millisecond)}, true
	})
	return err
}

const (
	// ruleSettles is the age up to which a signal without a rule waits once: a rule that was put just
	// before it may not have reached the directory of this process.
	ruleSettles = time.Second
	// signalAgain is the pause after a signal that could not be decided.
	signalAgain = 5 * time.Second
)

// Fire decides about signals that were delivered to this process, and submits their handoffs. Any
// number of processes may call it at once.
func (c Rules) Fire(ctx context.Context, batch []SignalDelivery) error {
	d, err := c.b.Directory(ctx)
	if err != nil {
		return err
	}
	again := make([]time.Duration, len(batch)) // 0: it is done
	of := map[string][]int{}                   // signals by rule
	unknown, last := 0, ""
	for i, delivery := range batch {
		s, known := delivery.Signal(), false
		for name, rule := range d.Rules {
			if rule.Signal == s.Name {
				known, of[name] = true, append(of[name], i)
			}
		}
		switch {
		case known:
		case delivery.Attempt() == 1 && c.b.Now().Sub(delivery.At()) < ruleSettles:
			again[i] = ruleSettles
		default:
			unknown, last = unknown+1, s.Name
		}
	}
	var errs []error
	for name, those := range of {
		turn := turn{rules: c, name: name, waits: make([]time.Duration, len(those))}
		for _, i := range those {
			turn.signals = append(turn.signals, batch[i].Signal())
		}
		if err := turn.fire(ctx); err != nil {
			errs = append(errs, fmt.Errorf("rule %s: %w", name, err))
		}
		for n, i := range those {
			again[i] = max(again[i], turn.waits[n])
		}
	}
	if unknown > 0 {
		errs = append(errs, c.countUnknown(ctx, unknown, last))
	}
	for i, delivery := range batch {
		if again[i] > 0 {
			err = delivery.Again(again[i])
		} else {
			err = delivery.Done()
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// turn is the work of one rule on some signals.
type turn struct {
	rules   Rules
	name    string
	signals []protocol.Signal
	waits   []time.Duration // of each signal: how long it waits; 0 is done

	mu        sync.Mutex
	fired     []protocol.Signalled
	refused   []protocol.Signalled
	unmatched int
	paused    int
	late      error // of the signals that wait because their submission failed
}

// fire decides about the signals, and counts the decisions. After an error before any was submitted all
// of them wait, and none is counted.
func (t *turn) fire(ctx context.Context) error {
	err := t.decide(ctx)
	if errors.Is(err, &protocol.Error{Code: protocol.CodeNotFound}) { // it was removed meanwhile
		return nil
	}
	if err != nil {
		for i := range t.waits {
			t.waits[i] = max(t.waits[i], signalAgain)
		}
		return err
	}
	return errors.Join(t.late, t.count(ctx))
}

func (t *turn) decide(ctx context.Context) error {
	rule, _, err := t.rules.Get(ctx, t.name)
	if err != nil {
		return err
	}
	template, err := t.rules.Package(ctx, t.name)
	if err != nil {
		return err
	}
	var match []int
	for i, s := range t.signals {
		switch {
		case s.Name != rule.Signal: // it was changed meanwhile
		case !rule.PausedAt.IsZero():
			t.paused++
		case s.Validate() != nil:
			t.refuse(s, s.Validate())
		case !rule.Matches(s.Payload):
			t.unmatched++
		default:
			match = append(match, i)
		}
	}
	match, err = t.withoutHandoff(ctx, match)
	if err != nil || len(match) == 0 {
		return err
	}
	got, wait := 0, time.Duration(0)
	_, err = t.rules.Change(ctx, t.name, func(r protocol.Rule, now time.Time) (protocol.Rule, bool) {
		var next protocol.Rule
		next, got, wait = r.Permit(len(match), now)
		return next, got > 0 || !next.FullAt.Equal(r.FullAt)
	})
	if err != nil {
		return err
	}
	for _, i := range match[got:] {
		t.waits[i] = max(wait, time.Second)
	}
	t.late = forEachParallel(ctx, got, func(ctx context.Context, n int) error {
		i := match[n]
		err := t.submit(ctx, template, t.signals[i])
		if err != nil {
			t.waits[i] = signalAgain
		}
		return err
	})
	return nil
}

// withoutHandoff returns the signals of which the rule has begun no handoff. The others need no
// permission by the rate.
func (t *turn) withoutHandoff(ctx context.Context, those []int) (left []int, err error) {
	has := make([]bool, len(t.signals))
	err = forEachParallel(ctx, len(those), func(ctx context.Context, n int) error {
		i := those[n]
		_, err := t.rules.b.Head(ctx, protocol.TicketForKey(protocol.SignalSource, protocol.SignalKey(t.name, t.signals[i].ID)), 0)
		if isAbsent(err) {
			return nil
		}
		has[i] = err == nil
		return err
	})
	return slices.DeleteFunc(those, func(i int) bool { return has[i] }), err
}

func (t *turn) refuse(s protocol.Signal, why error) {
	var refused *protocol.Error
	if !errors.As(why, &refused) {
		refused = protocol.Errorf(protocol.CodeInvalid, "", "%v", why)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.refused = append(t.refused, protocol.Signalled{ID: protocol.CutText(s.ID, protocol.SignalIDBytesMax), Code: refused.Code, Message: protocol.CutText(refused.Error(), 512)})
	t.rules.b.log.Warn("signal refused", "rule", t.name, "id", s.ID, "err", why)
}

// submit submits the handoff of a signal. The error is nil if the package was refused.
func (t *turn) submit(ctx context.Context, template json.RawMessage, s protocol.Signal) error {
	ctx, cancel := context.WithTimeout(ctx, submitWithin)
	defer cancel()
	body, err := protocol.FillTemplate(template, s.Payload)
	if err != nil {
		t.refuse(s, BelowPackage(err))
		return nil
	}
	in, err := t.rules.prepare(ctx, t.name, s.ID, body, s.Parent, false)
	var head Head
	if err == nil {
		head, err = t.rules.b.Submit(ctx, in)
	}
	var refused *protocol.Error
	switch {
	case errors.Is(err, &protocol.Error{Code: protocol.CodeKeyReused}): // begun before the template was replaced
	case errors.As(err, &refused) && refused.Code != protocol.CodeUnreachable:
		t.refuse(s, BelowPackage(err))
	case err != nil:
		return err
	case !head.Repeated:
		t.mu.Lock()
		defer t.mu.Unlock()
		t.fired = append(t.fired, protocol.Signalled{ID: s.ID, Ticket: head.Ticket})
	}
	return nil
}

// count adds the decisions to the record of the rule.
func (t *turn) count(ctx context.Context) error {
	if len(t.fired)+len(t.refused)+t.unmatched+t.paused == 0 {
		return nil
	}
	_, err := t.rules.Change(ctx, t.name, func(r protocol.Rule, now time.Time) (protocol.Rule, bool) {
		r.FiredCount, r.RefusedCount = r.FiredCount+len(t.fired), r.RefusedCount+len(t.refused)
		r.UnmatchedCount, r.PausedCount = r.UnmatchedCount+t.unmatched, r.PausedCount+t.paused
		if n := len(t.fired); n > 0 {
			last := t.fired[n-1]
			last.At, r.Last = now, &last
		}
		if n := len(t.refused); n > 0 {
			last := t.refused[n-1]
			last.At, r.Refused = now, &last
		}
		return r, true
	})
	if errors.Is(err, &protocol.Error{Code: protocol.CodeNotFound}) {
		err = nil
	}
	return err
}

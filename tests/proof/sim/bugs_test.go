//go:build proof

package sim

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/lifecycle"
	"github.com/agenthandoff/handoff/internal/supervisor"
	"github.com/agenthandoff/handoff/internal/testworld"
	"github.com/agenthandoff/handoff/protocol"
)

// bug is a planted bug, which the simulation must find.
type bug string

const (
	none           bug = ""
	noFence        bug = "no fence check"
	ackFirst       bug = "effects acknowledged before they are done"
	staleRead      bug = "a stale read believed"
	timerLost      bug = "a timer lost"
	offerLost      bug = "an offer lost"
	earlyLeaseLoss bug = "a lease called lost by a judge that has seen no holder yet"
	phantomAppend  bug = "a submission acknowledged that was not stored"
	returnLost     bug = "a return never delivered"
	childLost      bug = "a promised child never submitted"
	claimKept      bug = "a claim that never lapses"
	earlySource    bug = "what awaits its source begun before that has completed"
	offerKept      bug = "an ended offer never removed"
	slotsUnread    bug = "slots that count nothing"
	assignLost     bug = "a member given to an agent, and its group not told"
	refusalLost    bug = "a child promised without the agents that refused its parent"
	announceLost   bug = "an append that calls for a supervisor, and is not announced"
	standingLost   bug = "offers that stand, and no supervisor that sees to them"
	workRepeated   bug = "finished work done again, for what it hands on cannot be delivered"
	nobodyTold     bug = "a hand-off that cannot be delivered, and no authority that has it"
	awaitSplit     bug = "what a program waits for handed off before it waits"
	votesLost      bug = "the votes of members not told to their group"
	openUnswept    bug = "a sweep that passes over the entries of handoffs that are open"
	absenceStays   bug = "what an absence brought to a person, left there"
	denialWeak     bug = "a denial that others may undo"
	endTwice       bug = "the end of a chain told twice"
	endLost        bug = "the end of a chain never told"
	resultMixed    bug = "the result of one chain given to the next agent of another"
	fleetUnread    bug = "the settings of the fleet not asked for"
	deadlineEnds   bug = "a deadline that ends what an authority could have"
)

var bugs = []bug{variantDrawn, variantIgnored, variantRefuses, fleetModeUnread, awaitBarredLost, classIgnored, namesLiteral, awardedTwice, loserUntold, bidMisjudged, freeTakeOver, waitRenewed, rankedUnread, grantStale, commitLost, probeUncompared, contextWhole, handsToUnread, acceptsUnread, handoffsUnread, knotKept, knotFalse, probeUnreserved, probeForgiven, countsAttempts, drawnTwice, drawSkipped, grantForgotten, placeKept, zombieLocks, refundTwice, zeroAbsent, lineageLost, noFence, ackFirst, staleRead, timerLost, offerLost, earlyLeaseLoss, phantomAppend, returnLost, childLost, offerKept, claimKept, slotsUnread, assignLost, refusalLost, workRepeated, nobodyTold, deadlineEnds, earlySource, announceLost, standingLost, votesLost, awaitSplit, openUnswept, denialWeak, absenceStays, endTwice, endLost, resultMixed, approvalReused, silenceOffers, gateForgotten, fleetUnread, countsTwice, budgetIgnored}

// deciding are the bugs of supervisors that decide wrongly, each with its Update. The file of a
// subject adds its own, here and to bugs.
var deciding = map[bug]func(*faultyBroker, context.Context, broker.Head, broker.Decider) (broker.Head, bool, error){}

// findWithin is the number of seeds that a planted bug may survive.
const findWithin = 1_500

// plantedSeeds has, for each planted bug, a seed that found it: the first to be tried. Which seeds
// find a bug changes with the code and, for some, with the machine; the others are searched then.
const plantedSeeds = "testdata/planted.txt"

// TestPlantedBugs plants one bug after another, and checks that the simulation finds each. With
// -write-planted it records the seeds that did.
func TestPlantedBugs(t *testing.T) {
	if testworld.Race {
		t.Skip("what the simulation finds does not depend on the race detector, which makes it slow: run it without -race")
	}
	seeds := recordedSeeds(t)
	var mu sync.Mutex
	for _, planted := range bugs {
		t.Run(string(planted), func(t *testing.T) {
			t.Parallel()
			mu.Lock()
			recorded := seeds[planted]
			mu.Unlock()
			for seed := range uint64(findWithin) {
				if seed == 0 {
					if seed = recorded; seed == 0 {
						continue
					}
				}
				if found, _ := run(t, seed, planted, nil); len(found) > 0 {
					t.Logf("found by seed %d: %s", seed, found[0])
					mu.Lock()
					defer mu.Unlock()
					seeds[planted] = seed
					if *writePlanted {
						writeSeeds(t, seeds)
					}
					return
				}
			}
			t.Errorf("not found by %d seeds", findWithin)
		})
	}
}

// recordedSeeds reads plantedSeeds: a line for each bug, its seed and its name.
func recordedSeeds(t *testing.T) map[bug]uint64 {
	t.Helper()
	body, err := os.ReadFile(plantedSeeds)
	if err != nil {
		t.Fatal(err)
	}
	seeds := map[bug]uint64{}
	for line := range strings.Lines(string(body)) {
		number, name, _ := strings.Cut(strings.TrimSpace(line), " ")
		seed, err := strconv.ParseUint(number, 10, 64)
		if err != nil || !slices.Contains(bugs, bug(name)) {
			t.Errorf("%s: %q is not a seed and a planted bug", plantedSeeds, line)
		}
		seeds[bug(name)] = seed
	}
	return seeds
}

func writeSeeds(t *testing.T, seeds map[bug]uint64) {
	t.Helper()
	var text strings.Builder
	for _, planted := range slices.Sorted(maps.Keys(seeds)) {
		fmt.Fprintln(&text, seeds[planted], planted)
	}
	if err := os.WriteFile(plantedSeeds, []byte(text.String()), 0o644); err != nil {
		t.Fatal(err)
	}
}

// supervised returns the broker and the engine of a supervisor, with the planted bug.
func (l *simulation) supervised(e *engine, b *broker.Broker) (supervisor.Broker, supervisor.Engine) {
	if l.bug == none {
		return b, e
	}
	return &faultyBroker{b, l.bug}, &faultyEngine{e, l.bug}
}

// faultyBroker is a supervisor's broker that forgets something.
type faultyBroker struct {
	*broker.Broker
	bug bug
}

// faultyEngine is a supervisor's engine that forgets something.
type faultyEngine struct {
	*engine
	bug bug
}

func (f *faultyEngine) Follow(ctx context.Context, fn func(broker.Entry, func())) error {
	if f.bug != ackFirst {
		return f.engine.Follow(ctx, fn)
	}
	return f.engine.Follow(ctx, func(e broker.Entry, done func()) {
		done()
		fn(e, func() {})
	})
}

func (f *faultyEngine) Due(ctx context.Context, fn func(broker.WakeUp, func())) error {
	if f.bug != ackFirst {
		return f.engine.Due(ctx, fn)
	}
	return f.engine.Due(ctx, func(w broker.WakeUp, done func()) {
		done()
		fn(w, func() {})
	})
}

func (f *faultyEngine) Entries(ctx context.Context, from broker.Cursor, fn func(broker.Entry) error) error {
	return f.engine.Entries(ctx, from, func(e broker.Entry) error {
		if f.bug == openUnswept && !bytes.Contains(e.Body, []byte(`"closed":true`)) {
			return nil
		}
		return fn(e)
	})
}

func (f *faultyEngine) Arm(ctx context.Context, ticket string, seq uint64, at time.Time) error {
	if f.bug == timerLost {
		return nil
	}
	return f.engine.Arm(ctx, ticket, seq, at)
}

func (f *faultyBroker) EnsureOffer(ctx context.Context, head broker.Head) error {
	if f.bug == offerLost {
		return nil
	}
	return f.Broker.EnsureOffer(ctx, head)
}

func (f *faultyBroker) PublishOutbox(ctx context.Context, all []broker.Outbox) []error {
	if f.bug != offerLost && f.bug != timerLost {
		return f.Broker.PublishOutbox(ctx, all)
	}
	kept := make([]broker.Outbox, 0, len(all))
	for _, h := range all {
		if h.Offer = h.Offer && f.bug != offerLost; h.Offer || f.bug != timerLost {
			kept = append(kept, h)
		}
	}
	f.Broker.PublishOutbox(ctx, kept)
	return make([]error, len(all))
}

func (f *faultyBroker) Update(ctx context.Context, head broker.Head, decide broker.Decider) (broker.Head, bool, error) {
	if f.bug == refundTwice || f.bug == commitLost {
		return f.refundWrong(ctx, head, decide)
	}
	if f.bug == knotKept || f.bug == knotFalse {
		return f.tieKnots(ctx, head, decide)
	}
	if wrong := deciding[f.bug]; wrong != nil {
		return wrong(f, ctx, head, decide)
	}
	if f.bug == rankedUnread {
		return f.withoutRanked(ctx, head, decide)
	}
	if f.bug == votesLost {
		return f.withoutVotes(ctx, head, decide)
	}
	if f.bug == approvalReused || f.bug == silenceOffers || f.bug == gateForgotten || f.bug == silencePasses {
		return f.withoutAsking(ctx, head, decide)
	}
	if f.bug == budgetIgnored {
		return f.withoutBudget(ctx, head, decide)
	}
	if f.bug != claimKept && f.bug != deadlineEnds {
		return f.Broker.Update(ctx, head, decide)
	}
	return f.Broker.Update(ctx, head, func(h broker.Head, q lifecycle.Query) (lifecycle.Step, error) {
		step, err := decide(h, q)
		switch {
		case err != nil || len(step.Events) == 0:
			return step, err
		case f.bug == deadlineEnds:
			return lifecycle.StepOf(h.State, endedAtDeadline(step.Events)...)
		}
		if lost, ok := step.Events[0].(*protocol.LeaseLost); ok && lost.Reason == protocol.NotAcknowledged {
			return lifecycle.Step{}, nil
		}
		return step, nil
	})
}

// endedAtDeadline makes a close of the escalation that follows a deadline.
func endedAtDeadline(events []protocol.Event) []protocol.Event {
	for i, event := range events {
		if up, ok := event.(*protocol.Escalated); ok && up.ReasonCode == lifecycle.ReasonDeadline {
			return append(events[:i:i], &protocol.Closed{Meta: up.Meta, Outcome: protocol.OutcomeTimeout, Reason: lifecycle.ReasonDeadline, Inbox: protocol.Human})
		}
	}
	return events
}

func (f *faultyEngine) RemoveOffer(ctx context.Context, key broker.OfferKey) error {
	if f.bug == offerKept {
		return nil
	}
	return f.engine.RemoveOffer(ctx, key)
}

func (f *faultyBroker) EnsureReturn(ctx context.Context, head broker.Head) error {
	switch f.bug {
	case returnLost:
		return nil
	case endSwallowed:
		return f.swallowsEnds(ctx, head)
	case endLost:
		return f.withoutChains(ctx, head)
	}
	return f.Broker.EnsureReturn(ctx, head)
}

func (f *faultyBroker) EnsureChildren(ctx context.Context, head broker.Head) ([]protocol.ChildClosed, error) {
	if f.bug == childLost {
		return nil, nil
	}
	return f.Broker.EnsureChildren(ctx, head)
}

func (f *faultyBroker) EnsureSource(ctx context.Context, head broker.Head) error {
	if f.bug != earlySource {
		return f.Broker.EnsureSource(ctx, head)
	}
	_, _, err := f.Broker.Update(ctx, head, func(h broker.Head, q lifecycle.Query) (lifecycle.Step, error) {
		if h.State.Phase != protocol.AwaitingSource {
			return lifecycle.Step{}, nil
		}
		return lifecycle.StepOf(h.State, &protocol.SourceCompleted{Meta: protocol.Meta{At: q.Now, By: lifecycle.By}})
	})
	return err
}

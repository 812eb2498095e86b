package tests

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/rogpeppe/go-internal/testscript"

	"github.com/agenthandoff/handoff/broker"
	trail "github.com/agenthandoff/handoff/internal/audit"
	"github.com/agenthandoff/handoff/internal/cli"
	handoffjs "github.com/agenthandoff/handoff/internal/jetstream"
	"github.com/agenthandoff/handoff/internal/lifecycle"
	"github.com/agenthandoff/handoff/protocol"
)

// checkEnd checks the engine at the end of a script, if it still runs: every queued offer belongs
// to an open handoff, handoff doctor finds no problem if none is open, and every event is one that
// its writer makes.
func checkEnd(ts *testscript.TestScript, url string) {
	all := of(ts)
	select {
	case <-all.dev.done: // the story has stopped it
		return
	default:
	}
	if t, ok := all.t.(interface{ Failed() bool }); ok && t.Failed() {
		return
	}
	engine, err := handoffjs.Dial(context.Background(), handoffjs.DialConfig{URL: url, Name: "handoff tests"})
	if err != nil {
		all.t.Fatal(err)
	}
	defer func() { _ = engine.Close() }()
	until(all.t, waitTimeout, func(ctx context.Context) string { return followed(ctx, engine) })
	until(all.t, acknowledgeTimeout, func(ctx context.Context) string { return endedOffers(ctx, engine) })
	until(all.t, waitTimeout, func(ctx context.Context) string { return doctorComplains(ctx, ts, engine, url) })
	until(all.t, waitTimeout, func(ctx context.Context) string { return misattributed(ctx, engine) })
}

// misattributed returns the findings of handoff audit verify --writers alone: other faults of the
// ledger may be part of the script.
func misattributed(ctx context.Context, engine *handoffjs.Engine) string {
	b, err := broker.New(engine, broker.Config{})
	if err != nil {
		return err.Error()
	}
	report, err := trail.VerifyLedger(ctx, b, nil, trail.CheckWriters)
	if err != nil {
		return err.Error()
	}
	for _, problem := range report.Problems {
		if problem.Kind == trail.KindWriter {
			return fmt.Sprintf("entry %d of %s: %s", problem.Seq, problem.Ticket, problem.Message)
		}
	}
	return ""
}

// acknowledgeTimeout is how long an acknowledgement may be on its way. It is shorter than a
// supervisor takes to its second pass, which would hide an offer that was left behind.
const acknowledgeTimeout = 5 * time.Second

// until repeats a check until it finds nothing, or fails the script with the finding.
func until(t testscript.T, most time.Duration, wrong func(context.Context) string) {
	ctx, cancel := context.WithTimeout(context.Background(), most)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	last := ""
	for {
		what := wrong(ctx)
		if what == "" {
			return
		}
		if ctx.Err() == nil || last == "" {
			last = what
		}
		select {
		case <-ctx.Done():
			t.Fatal("when the story is over: " + last)
		case <-tick.C:
		}
	}
}

// followed waits for the supervisor to be done with every announcement and wake-up that is due.
func followed(ctx context.Context, engine *handoffjs.Engine) string {
	js, err := jetstream.New(engine.Conn())
	if err != nil {
		return err.Error()
	}
	consumer, err := js.Consumer(ctx, handoffjs.TimerStream, handoffjs.SupervisorConsumer)
	if err != nil {
		return err.Error()
	}
	if info := consumer.CachedInfo(); info.NumPending > 0 || info.NumAckPending > 0 {
		return fmt.Sprintf("the supervisor has %d announcements and wake-ups to take, and %d in hands", info.NumPending, info.NumAckPending)
	}
	return ""
}

// endedOffers names the queued offers of no open handoff.
func endedOffers(ctx context.Context, engine *handoffjs.Engine) string {
	_, standing, err := readHeads(ctx, engine)
	var ended []string
	if err == nil {
		err = engine.Offers(ctx, "", func(key broker.OfferKey) error {
			if standing[key.Ticket] != key.Sequence {
				ended = append(ended, fmt.Sprintf("%d of %s at %s", key.Sequence, key.Ticket, key.Agent))
			}
			return nil
		})
	}
	switch {
	case err != nil:
		return err.Error()
	case len(ended) > 0:
		return "offers stand that have ended: " + strings.Join(ended, ", ")
	}
	return ""
}

// doctorComplains returns the problems that handoff doctor finds when no handoff is open. It skips
// fsync, which the scripts turn off.
func doctorComplains(ctx context.Context, ts *testscript.TestScript, engine *handoffjs.Engine, url string) string {
	open, _, err := readHeads(ctx, engine)
	switch {
	case err != nil:
		return err.Error()
	case open > 0:
		return ""
	}
	config := ts.Getenv("XDG_CONFIG_HOME")
	var out bytes.Buffer
	code := cli.Run(ctx, []string{"doctor", "--skip", "fsync", "-s", url}, strings.NewReader(""), &out, &out, func(name string) string {
		if name == "XDG_CONFIG_HOME" {
			return config
		}
		return os.Getenv(name)
	})
	if code != 0 {
		return fmt.Sprintf("handoff doctor: exit code %d\n%s", code, out.String())
	}
	return ""
}

// readHeads counts the open handoffs, and returns the current offer of each.
func readHeads(ctx context.Context, engine *handoffjs.Engine) (open int, standing map[string]uint64, err error) {
	states := map[string]protocol.State{}
	err = engine.Heads(ctx, func(e broker.Entry) error {
		if head, err := broker.HeadOf(e); err == nil { // else the story has put it there
			states[e.Ticket] = head.State
		}
		return nil
	})
	standing = map[string]uint64{}
	for ticket, state := range states {
		if !state.Closed {
			open++
		}
		if lifecycle.OfferStands(state) {
			standing[ticket] = state.Offer
		}
	}
	return open, standing, err
}

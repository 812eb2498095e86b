//go:build proof

package access

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/agenthandoff/handoff/internal/testworld"
)

// world is a quiet engine with something worth attacking in it: handoffs of the agent
// tester, one that waits in its queue and one that a holder of tester's has.
type world struct {
	*server
	nc *nats.Conn // the operator's
	js jetstream.JetStream

	waiting, held string // tickets
	gated         string // the ticket of one that waits until builder approves it
	lease         string
	ack           string // on which the delivery of held is acknowledged
	ackV2         string // the same in the newer form
	work          uint64 // the sequence of waiting in the work stream
	watched       bool   // a process of ours runs that watches the directory, and writes to it as it does
}

// streams are all that there are.
var streams = []string{"HANDOFF_LEDGER", "HANDOFF_WORK", "HANDOFF_TIMERS", "KV_HANDOFF_AGENTS", "KV_HANDOFF_HOLDERS", "OBJ_HANDOFF_BLOBS", "HANDOFF_WORKSPACES", "HANDOFF_SIGNALS"}

// nightly is a workflow of the victim's.
const nightly = "nightly"

func newWorld(t *testing.T, servers int) *world {
	t.Helper()
	w := &world{server: startServers(t, servers, 1)}
	w.nc = w.dial("operator")
	var err error
	if w.js, err = jetstream.New(w.nc); err != nil {
		t.Fatal(err)
	}
	for _, agent := range []string{"tester", "builder", "reviewer"} {
		w.must("operator", "agents", "put", agent)
	}
	w.must("operator", "workflow", "open", nightly, "--max-handoffs", "9")
	w.held = w.must("operator", "submit", "--to", "tester", "--reason", "ready", "--task", "held")
	w.lease = field[string](t, w.must("operator", "claim", "--agent", "tester", "--lease", "1h", "-o", "json"), "lease")
	w.must("operator", "ack", w.lease, "accepted")
	w.waiting = w.must("operator", "submit", "--to", "tester", "--reason", "ready", "--task", "waiting")
	w.gated = w.must("operator", "submit", "--to", "tester", "--reason", "ready", "--task", "gated", "--approve-by", "builder")
	w.take()
	w.nc.SetErrorHandler(func(*nats.Conn, *nats.Subscription, error) {})
	return w
}

// take has an offer of tester's in the hands of a worker that is not there any more, so
// that there is a delivery whose acknowledgement can be forged.
func (w *world) take() {
	w.t.Helper()
	third := w.must("operator", "submit", "--to", "tester", "--reason", "ready", "--task", "delivered")
	ctx, cancel := context.WithTimeout(w.t.Context(), testTimeout)
	defer cancel()
	consumer, err := w.js.Consumer(ctx, "HANDOFF_WORK", "tester-normal")
	if err != nil {
		w.t.Fatal(err)
	}
	for {
		msg, err := consumer.Next(jetstream.FetchMaxWait(10 * time.Second))
		if err != nil {
			w.t.Fatal(err)
		}
		meta, err := msg.Metadata()
		if err != nil {
			w.t.Fatal(err)
		}
		if strings.Contains(msg.Subject(), w.waiting) {
			w.work = meta.Sequence.Stream
			_ = msg.Nak()
			continue
		}
		if strings.Contains(msg.Subject(), third) {
			w.ack = msg.Reply()
			break
		}
	}
	w.ackV2 = strings.Replace(w.ack, "$JS.ACK.", "$JS.ACK._.HASH.", 1)
}

// state is what must not change, in words.
type state map[string]string

// look reads everything, behind all that was sent before. A busy cluster may deny for a
// moment that a stream is there which it has just listed: then it looks again.
func (w *world) look() state {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), testTimeout)
	defer cancel()
	w.settle(ctx)
	for {
		s, err := w.lookOnce(ctx)
		if err == nil {
			return s
		}
		if ctx.Err() != nil {
			w.t.Fatal(err)
		}
		testworld.Pause(ctx, 100*time.Millisecond)
	}
}

func (w *world) lookOnce(ctx context.Context) (state, error) {
	s := state{}
	names := w.js.StreamNames(ctx)
	for name := range names.Name() {
		s["stream "+name] = "is there"
	}
	if err := names.Err(); err != nil {
		return nil, err
	}
	for _, name := range streams {
		if s["stream "+name] == "" {
			continue // gone
		}
		if err := w.lookAt(ctx, name, s); err != nil {
			return nil, err
		}
	}
	maps.DeleteFunc(s, func(what, _ string) bool {
		return w.watched && (what == "messages KV_HANDOFF_HOLDERS" || what == "subject $KV.HANDOFF_HOLDERS.probe" || strings.HasPrefix(what, "consumer KV_HANDOFF_"))
	})
	return s, nil
}

// lookAt adds what a stream has.
func (w *world) lookAt(ctx context.Context, name string, s state) error {
	stream, err := w.js.Stream(ctx, name)
	if err != nil {
		return err
	}
	info, err := stream.Info(ctx, jetstream.WithSubjectFilter(">"))
	if err != nil {
		return err
	}
	config, err := json.Marshal(info.Config)
	if err != nil {
		return err
	}
	s["config "+name] = string(config)
	s["messages "+name] = fmt.Sprintf("%d from %d to %d, %d deleted, %d bytes", info.State.Msgs, info.State.FirstSeq, info.State.LastSeq, info.State.NumDeleted, info.State.Bytes)
	for subject, count := range info.State.Subjects {
		s["subject "+subject] = fmt.Sprint(count)
	}
	consumers := stream.ListConsumers(ctx)
	for c := range consumers.Info() {
		s["consumer "+name+" "+c.Name] = fmt.Sprintf("delivered %d, acknowledged to %d, %d in hands, %d again, %d waiting", c.Delivered.Consumer, c.AckFloor.Consumer, c.NumAckPending, c.NumRedelivered, c.NumPending)
	}
	return consumers.Err()
}

// lasting is what is otherwise than before, and stays so: a cluster that is busy may
// leave a stream or a consumer out of one answer.
func (w *world) lasting(before, after state) (state, []string) {
	w.t.Helper()
	found := changes(before, after)
	for range 3 {
		if len(found) == 0 {
			break
		}
		testworld.Pause(w.t.Context(), time.Second)
		after = w.look()
		found = changes(before, after)
	}
	return after, found
}

// settle returns when the engine has dealt with what it had got: each stream has then
// refused a write that came after it, and each consumer confirmed a word on a message
// that is not there.
func (w *world) settle(ctx context.Context) {
	w.t.Helper()
	for range 2 { // an answer of the engine may be a message to it
		if err := w.nc.FlushWithContext(ctx); err != nil {
			w.t.Fatal(err)
		}
		for _, subject := range []string{"handoff.ledger.barrier", "handoff.work.barrier", "handoff.timer.barrier", "$KV.HANDOFF_AGENTS.barrier", "$KV.HANDOFF_HOLDERS.barrier", "handoff.workspace.barrier", "$O.HANDOFF_BLOBS.M.barrier"} {
			msg := nats.NewMsg(subject)
			msg.Header.Set(jetstream.ExpectedLastSubjSeqHeader, "999999999")
			_, _ = w.nc.RequestMsgWithContext(w.limited(ctx), msg) // refused, or the stream is gone
		}
		for _, consumer := range []string{"tester-normal", "builder-normal"} {
			_, _ = w.nc.RequestWithContext(w.limited(ctx), "$JS.ACK.HANDOFF_WORK."+consumer+".1.999999999999.999999999.1.0", []byte("+WPI"))
		}
	}
}

func (w *world) limited(ctx context.Context) context.Context {
	limited, cancel := context.WithTimeout(ctx, 2*time.Second)
	context.AfterFunc(ctx, cancel)
	return limited
}

// changes says what is otherwise than it was, without what the attacker may change.
func changes(before, after state) (found []string) {
	keys := map[string]bool{}
	for k := range before {
		keys[k] = true
	}
	for k := range after {
		keys[k] = true
	}
	for _, k := range slices.Sorted(maps.Keys(keys)) {
		if before[k] != after[k] {
			found = append(found, fmt.Sprintf("%s: %q, was %q", k, after[k], before[k]))
		}
	}
	return found
}

package notify_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/brokertest"
	"github.com/agenthandoff/handoff/internal/jetstream"
	"github.com/agenthandoff/handoff/internal/notify"
	"github.com/agenthandoff/handoff/internal/supervisor"
	"github.com/agenthandoff/handoff/internal/testworld"
	"github.com/agenthandoff/handoff/protocol"
)

const (
	secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
	other  = "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oDAAAA"
)

var loopback = []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8"), netip.MustParsePrefix("::1/128")}

// receiver is a server of webhooks that verifies each.
type receiver struct {
	*httptest.Server
	answer atomic.Pointer[http.HandlerFunc] // nil answers 204

	mu  sync.Mutex
	got []delivery
}

type delivery struct {
	id, at string
	notify.Notification
}

func newReceiver(t *testing.T) *receiver {
	r := &receiver{}
	verifier, err := standardwebhooks.NewWebhook(secret)
	if err != nil {
		t.Fatal(err)
	}
	r.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, request *http.Request) {
		body, _ := io.ReadAll(request.Body)
		if err := verifier.Verify(body, request.Header); err != nil {
			t.Errorf("%v: %v", err, request.Header)
		}
		got := delivery{id: request.Header.Get("webhook-id"), at: request.Header.Get("webhook-timestamp")}
		if err := json.Unmarshal(body, &got.Notification); err != nil {
			t.Error(err)
		}
		r.mu.Lock()
		r.got = append(r.got, got)
		r.mu.Unlock()
		if answer := r.answer.Load(); answer != nil {
			(*answer)(w, request)
			return
		}
		w.WriteHeader(http.StatusNoContent)
	}))
	t.Cleanup(r.Close)
	return r
}

func (r *receiver) answers(fn http.HandlerFunc) { r.answer.Store(&fn) }

func (r *receiver) deliveries() []delivery {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.got)
}

// until waits for a condition on what was received.
func (r *receiver) until(t *testing.T, what string, cond func([]delivery) bool) []delivery {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(5 * time.Millisecond) {
		got := r.deliveries()
		if cond(got) {
			return got
		}
		if time.Now().After(deadline) {
			t.Fatalf("not received: %s; received %+v", what, got)
		}
	}
}

func (r *receiver) webhook(t *testing.T, secrets string, allowed []netip.Prefix) *notify.Webhook {
	t.Helper()
	w, err := notify.NewWebhook(r.URL, secrets, allowed)
	if err != nil {
		t.Fatal(err)
	}
	return w
}

func TestReceivers(t *testing.T) {
	never := make(chan struct{})
	defer close(never)
	for name, c := range map[string]struct {
		answer http.HandlerFunc
		err    string // "" is none
	}{
		"well": {func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusOK) }, ""},
		"endless": {func(w http.ResponseWriter, _ *http.Request) {
			for {
				if _, err := w.Write(make([]byte, 64<<10)); err != nil {
					return // the sender reads no more
				}
			}
		}, ""},
		"slow": {func(w http.ResponseWriter, request *http.Request) {
			select {
			case <-never:
			case <-request.Context().Done():
			}
		}, "context deadline exceeded"},
		"failing": {func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusInternalServerError) }, "the receiver answered 500 Internal Server Error"},
		"redirecting": {func(w http.ResponseWriter, request *http.Request) {
			http.Redirect(w, request, "/elsewhere", http.StatusTemporaryRedirect)
		}, "the receiver answered 307 Temporary Redirect"},
		"gone": {func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusGone) }, notify.ErrGone.Error()},
	} {
		t.Run(name, func(t *testing.T) {
			r := newReceiver(t)
			r.answers(c.answer)
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			if name == "slow" {
				ctx, cancel = context.WithTimeout(t.Context(), 100*time.Millisecond)
				defer cancel()
			}
			err := r.webhook(t, secret, loopback).Send(ctx, "one", notify.Notification{}, []byte("{}"))
			if c.err == "" && err != nil || c.err != "" && (err == nil || err.Error() != c.err) {
				t.Errorf("the error is %v, want %q", err, c.err)
			}
			if n := len(r.deliveries()); n != 1 {
				t.Errorf("%d requests", n)
			}
		})
	}
	t.Run("down", func(t *testing.T) {
		r := newReceiver(t)
		r.Close()
		if err := r.webhook(t, secret, loopback).Send(t.Context(), "one", notify.Notification{}, []byte("{}")); err == nil {
			t.Error("no error")
		}
	})
	t.Run("two secrets", func(t *testing.T) {
		r := newReceiver(t)
		if err := r.webhook(t, other+"\n"+secret+"\n", loopback).Send(t.Context(), "one", notify.Notification{}, []byte("{}")); err != nil {
			t.Error(err)
		}
	})
}

// TestAddresses: a name is refused by the address that it resolves to, and no connection is made.
func TestAddresses(t *testing.T) {
	r := newReceiver(t)
	var connections atomic.Int64
	r.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateNew {
			connections.Add(1)
		}
	}
	port := r.Listener.Addr().(*net.TCPAddr).Port
	w, err := notify.NewWebhook(fmt.Sprintf("http://localhost:%d", port), secret, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err = w.Send(t.Context(), "one", notify.Notification{}, []byte("{}")); err == nil || connections.Load() > 0 {
		t.Errorf("a name of loopback: %v, and %d connections", err, connections.Load())
	}
	for address, ok := range map[string]bool{
		"127.0.0.1": false, "[::1]": false, "[::ffff:127.0.0.1]": false, "10.1.2.3": false, "172.16.0.1": false, "192.168.1.1": false,
		"169.254.169.254": false, "[fe80::1]": false, "[fd00::1]": false, "0.0.0.0": false, "[::]": false, "100.64.0.1": false,
		"224.0.0.1": false, "255.255.255.255": false, "[64:ff9b::7f00:1]": false, "[2002:7f00:1::]": false,
		"93.184.215.14": true, "[2606:2800:21f::1]": true,
	} {
		_, err := notify.NewWebhook("https://"+address+"/hook", secret, nil)
		if (err == nil) != ok {
			t.Errorf("%s: %v", address, err)
		}
		if _, err := notify.NewWebhook("https://"+address+"/hook", secret, []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0"), netip.MustParsePrefix("::/0")}); err != nil {
			t.Errorf("%s, allowed: %v", address, err)
		}
	}
	for _, c := range [][2]string{{"ftp://example.org", secret}, {"https://", secret}, {"https://example.org", ""}, {"https://example.org", "whsec_c2hvcnQ="}, {"https://example.org", "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"}} {
		var refused *protocol.Error
		if _, err := notify.NewWebhook(c[0], c[1], nil); !errors.As(err, &refused) {
			t.Errorf("%v: %v", c, err)
		}
	}
}

// world is an engine, a source, and notifiers.
type world struct {
	*testing.T
	url  string
	b    *broker.Broker
	dead *jetstream.Engine // of the last notifier

	engine *jetstream.Engine // of the test
	agents []string
}

func newWorld(t *testing.T) *world {
	url, engine := testworld.Engine(t)
	w := &world{T: t, url: url, b: brokertest.Over(t, engine), engine: engine}
	brokertest.Register(t, w.b, "coder", "lead")
	return w
}

// run runs a notifier on an engine of its own, until stop, which returns its error.
func (w *world) run(to notify.Sender, on ...notify.Kind) (ended <-chan error, stop func()) {
	w.Helper()
	engine, err := jetstream.Dial(w.Context(), jetstream.DialConfig{URL: w.url, Config: jetstream.Config{AckWait: 100 * time.Millisecond}})
	if err != nil {
		w.Fatal(err)
	}
	w.dead = engine
	n := &notify.Notifier{Ledger: engine, Broker: brokertest.Over(w, engine), To: to, Target: "here", On: on, Agents: w.agents, Log: slog.New(slog.DiscardHandler)}
	ctx, cancel := context.WithCancel(w.Context())
	result, joined, ready := make(chan error, 1), make(chan struct{}), make(chan struct{})
	go func() {
		defer close(joined)
		result <- n.Run(ctx, func() { close(ready) })
		_ = engine.Close()
	}()
	stop = sync.OnceFunc(func() { cancel(); <-joined })
	w.Cleanup(stop)
	<-ready
	return result, stop
}

// cancelled submits a handoff and cancels it.
func (w *world) cancelled() string {
	w.Helper()
	ticket := brokertest.Submit(w, w.b, protocol.Package{}).State.Ticket
	if _, err := w.b.Cancel(w.Context(), ticket, "lead", "never mind"); err != nil {
		w.Fatal(err)
	}
	return ticket
}

func tickets(got []delivery) (all []string) {
	for _, d := range got {
		all = append(all, d.Data.Ticket)
	}
	return all
}

func has(all ...string) func([]delivery) bool {
	return func(got []delivery) bool {
		return !slices.ContainsFunc(all, func(ticket string) bool { return !slices.Contains(tickets(got), ticket) })
	}
}

// TestRepeats: what a receiver did not take comes again, under the same id and with a new instant.
func TestRepeats(t *testing.T) {
	w, r := newWorld(t), newReceiver(t)
	var failures atomic.Int64
	r.answers(func(rw http.ResponseWriter, _ *http.Request) {
		if failures.Add(1) <= 2 {
			rw.WriteHeader(http.StatusServiceUnavailable)
		}
	})
	w.run(r.webhook(t, secret, loopback), notify.Closed)
	ticket := w.cancelled()
	got := r.until(t, "three tries", func(got []delivery) bool { return len(got) == 3 })
	for i, d := range got {
		if d.id != got[0].id || i > 0 && d.at == got[i-1].at {
			t.Errorf("try %d has the id %s and the instant %s, the first %s and %s", i+1, d.id, d.at, got[0].id, got[0].at)
		}
	}
	d := got[0]
	if d.Type != "handoff.closed" || d.Data.Ticket != ticket || d.Data.Agent != "coder" || !d.Data.State.Closed || d.Data.State.Outcome != protocol.OutcomeCancelled ||
		d.Timestamp.IsZero() || d.Data.State.Source != "lead" {
		t.Errorf("received %+v", d)
	}
	if d.Data.Sentence == "" {
		t.Error("no sentence")
	}
}

// TestDownForLong: more occurrences than the engine offers again at a time wait for a receiver that is down, and
// all of them arrive when it is back.
func TestDownForLong(t *testing.T) {
	t.Parallel()
	const all, offered = 1100, 1000 // offered is the limit of Consume
	w, r := newWorld(t), newReceiver(t)
	r.answers(func(rw http.ResponseWriter, _ *http.Request) { rw.WriteHeader(http.StatusServiceUnavailable) })
	w.run(r.webhook(t, secret, loopback), notify.Closed)
	missing := map[string]bool{}
	for range all {
		missing[w.cancelled()] = true
	}
	r.until(t, "a try of each that is offered", func(got []delivery) bool { return distinct(got) >= offered })
	if n := distinct(r.deliveries()); n > offered {
		t.Errorf("%d wait for another try, and %d may", n, offered)
	}
	var mu sync.Mutex
	taken := map[string]bool{}
	r.answers(func(_ http.ResponseWriter, request *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		taken[request.Header.Get("webhook-id")] = true
	})
	count := func() (n int) {
		mu.Lock()
		defer mu.Unlock()
		return len(taken)
	}
	for end := time.Now().Add(10 * time.Minute); count() < all; time.Sleep(50 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%d of %d arrived", count(), all)
		}
	}
	for _, d := range r.deliveries() {
		delete(missing, d.Data.Ticket)
	}
	if len(missing) > 0 {
		t.Errorf("%d are missing", len(missing))
	}
}

// TestRestarts: what happens while no notifier runs is sent by the next one, and nothing twice.
func TestRestarts(t *testing.T) {
	w, r := newWorld(t), newReceiver(t)
	_, stop := w.run(r.webhook(t, secret, loopback), notify.Closed)
	var all []string
	for range 3 {
		all = append(all, w.cancelled())
		r.until(t, "the one while it runs", has(all...))
		stop()
		for range 10 {
			all = append(all, w.cancelled())
		}
		_, stop = w.run(r.webhook(t, secret, loopback), notify.Closed)
		r.until(t, "those while none ran", has(all...))
	}
	if n := distinct(r.deliveries()); n != len(all) { // the one that a stop cuts off comes again
		t.Errorf("%d notifications of %d handoffs", n, len(all))
	}
}

// distinct counts the ids of deliveries.
func distinct(all []delivery) int {
	ids := map[string]bool{}
	for _, d := range all {
		ids[d.id] = true
	}
	return len(ids)
}

// TestKilled: a notification whose notifier dies while it sends comes from the next one.
func TestKilled(t *testing.T) {
	w, r := newWorld(t), newReceiver(t)
	sends, release := make(chan struct{}), make(chan struct{})
	ended, _ := w.run(sender(func(context.Context) error {
		sends <- struct{}{}
		<-release
		_ = w.dead.Close() // it can report nothing
		return nil
	}), notify.Closed)
	ticket := w.cancelled()
	<-sends
	close(release)
	if err := <-ended; err == nil {
		t.Fatal("it goes on")
	}
	w.run(r.webhook(t, secret, loopback), notify.Closed)
	r.until(t, "what was not reported", has(ticket))
}

// TestAbsent: an absence is worded, and other agents are left out.
func TestAbsent(t *testing.T) {
	w, r := newWorld(t), newReceiver(t)
	w.agents = []string{"coder"}
	w.run(r.webhook(t, secret, loopback), notify.Absent, notify.Escalated)
	s, err := supervisor.New(w.b, w.engine, supervisor.Config{})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- s.Run(ctx) }()
	defer func() { cancel(); <-ended }()
	soon := protocol.PolicyOverrides{AckTimeoutMS: new(int64(1))}
	brokertest.Submit(t, w.b, protocol.Package{Target: protocol.Target{Agent: "lead"}, Source: "coder", Policy: soon})
	ticket := brokertest.Submit(t, w.b, protocol.Package{Policy: soon}).State.Ticket
	got := r.until(t, "two notifications", func(got []delivery) bool { return len(got) >= 2 })
	sentences := map[string]string{}
	for _, d := range got {
		if d.Data.Ticket != ticket || d.Data.Agent != protocol.Human {
			t.Errorf("received %+v", d)
		}
		sentences[d.Type] = d.Data.Sentence
	}
	if absent := sentences["handoff.absent"]; !strings.HasPrefix(absent, "No worker of coder took it in time. ") || "No worker of coder took it in time. "+sentences["handoff.escalated"] != absent {
		t.Errorf("%q", sentences)
	}
}

// TestGone: 410 ends the notifier, which keeps the notification.
func TestGone(t *testing.T) {
	w, r := newWorld(t), newReceiver(t)
	r.answers(func(rw http.ResponseWriter, _ *http.Request) { rw.WriteHeader(http.StatusGone) })
	ended, _ := w.run(r.webhook(t, secret, loopback), notify.Closed)
	ticket := w.cancelled()
	if err := <-ended; !errors.Is(err, notify.ErrGone) {
		t.Fatalf("it ended with %v", err)
	}
	fresh := newReceiver(t)
	w.run(fresh.webhook(t, secret, loopback), notify.Closed)
	fresh.until(t, "what was not taken", has(ticket))
}

type sender func(context.Context) error

func (s sender) Send(ctx context.Context, _ string, _ notify.Notification, _ []byte) error {
	return s(ctx)
}

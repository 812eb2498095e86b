package broker

import (
	"cmp"
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/agenthandoff/handoff/internal/lifecycle"
)

const (
	// AnnounceHold is how long an append that calls for a supervisor later is held: most
	// handoffs have moved on, or closed, by then, and nothing is announced.
	AnnounceHold = time.Second
	// announceSlack: announcements that fall due within it are published with those that are due now.
	announceSlack = AnnounceHold / 50
	// announceTimeout bounds one try to announce.
	announceTimeout = 5 * time.Second
)

// Publisher publishes outbox entries; see Queue.PublishOutbox.
type Publisher interface {
	PublishOutbox(ctx context.Context, entries []OutboxEntry) []error
}

// Announcer announces the appends of one process to the supervisors. The attention of an append
// decides when: none is never announced, now is announced at once, later is announced after
// AnnounceHold unless this process has appended to the handoff since, or has called Settled. An
// engine has one Announcer for each connection.
//
// An announcement that cannot be published is retried every AnnounceHold until Close. If the
// process is killed, the held announcements are lost; a supervisor's sweep finds their handoffs.
//
// Announcer is safe for concurrent use. The zero value is not ready; use NewAnnouncer.
type Announcer struct {
	publisher Publisher
	log       *slog.Logger
	closing   context.Context // ends with Close
	end       context.CancelFunc
	ticks     sync.WaitGroup // counts scheduled and running calls of announceDue

	mu     sync.Mutex
	held   map[string]uint64 // by ticket, the sequence of the append to announce later
	order  []heldAppend      // in the order of until
	failed []OutboxEntry     // to be retried
	timer  *time.Timer       // calls announceDue; nil if none is scheduled
	closed bool
}

// heldAppend is an append that is held until an instant.
type heldAppend struct {
	ticket string
	seq    uint64
	until  time.Time
}

// NewAnnouncer returns an Announcer over a publisher; a nil log discards.
func NewAnnouncer(publisher Publisher, log *slog.Logger) *Announcer {
	a := &Announcer{publisher: publisher, log: cmp.Or(log, slog.New(slog.DiscardHandler)), held: map[string]uint64{}}
	a.closing, a.end = context.WithCancel(context.Background())
	return a
}

// Appended announces an append, or holds the announcement. It blocks only for an announcement that
// is due now: until it is published, or has failed for the first time.
func (a *Announcer) Appended(ctx context.Context, ticket string, seq uint64, attention lifecycle.Attention) {
	attention = cmp.Or(attention, lifecycle.AttentionNow)
	word := attention.Word()
	more := len(attention) > len(word) // an offer or an attempt that has ended
	a.mu.Lock()
	if word == lifecycle.AttentionLater {
		a.hold(ticket, seq)
		attention = lifecycle.AttentionNone + attention[len(word):] // for the offer or attempt that has ended, if any
	} else {
		delete(a.held, ticket)
	}
	a.mu.Unlock()
	if more || word != lifecycle.AttentionNone && word != lifecycle.AttentionLater {
		a.announce(ctx, []OutboxEntry{{WakeUp: WakeUp{Ticket: ticket, Seq: seq, Attention: attention}}})
	}
}

// Settled drops a held append.
func (a *Announcer) Settled(ticket string, seq uint64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.held[ticket] == seq {
		delete(a.held, ticket)
	}
}

// hold requires a.mu.
func (a *Announcer) hold(ticket string, seq uint64) {
	a.held[ticket] = seq
	a.order = append(a.order, heldAppend{ticket: ticket, seq: seq, until: time.Now().Add(AnnounceHold)})
	a.startTimer(AnnounceHold)
}

// startTimer requires a.mu.
func (a *Announcer) startTimer(wait time.Duration) {
	if a.timer == nil && !a.closed {
		a.ticks.Add(1)
		a.timer = time.AfterFunc(wait, a.announceDue)
	}
}

// announceDue announces the appends whose hold is over and those that have failed. It schedules the
// next call for the rest.
func (a *Announcer) announceDue() {
	defer a.ticks.Done()
	now := time.Now()
	a.mu.Lock()
	due := a.failed
	a.failed = nil
	rest := 0
	for ; rest < len(a.order) && a.order[rest].until.Sub(now) <= announceSlack; rest++ {
		due = a.appendHeld(due, a.order[rest])
	}
	a.order = a.order[:copy(a.order, a.order[rest:])] // reuse the array
	a.mu.Unlock()
	if len(due) > 0 {
		ctx, cancel := context.WithTimeout(a.closing, announceTimeout)
		a.announce(ctx, due)
		cancel()
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.timer = nil
	switch {
	case len(a.order) > 0:
		a.startTimer(max(time.Until(a.order[0].until), time.Millisecond))
	case len(a.failed) > 0:
		a.startTimer(AnnounceHold)
	default:
		a.order = nil // let the array go after a burst
	}
}

// appendHeld adds the announcement of an append that is still held. It requires a.mu.
func (a *Announcer) appendHeld(to []OutboxEntry, h heldAppend) []OutboxEntry {
	if a.held[h.ticket] != h.seq {
		return to
	}
	delete(a.held, h.ticket)
	return append(to, OutboxEntry{WakeUp: WakeUp{Ticket: h.ticket, Seq: h.seq, Attention: lifecycle.AttentionLater}})
}

// announce publishes announcements, and keeps those that fail.
func (a *Announcer) announce(ctx context.Context, all []OutboxEntry) {
	var failed []OutboxEntry
	var cause error
	for i, err := range a.publisher.PublishOutbox(ctx, all) {
		if err != nil {
			failed, cause = append(failed, all[i]), err
		}
	}
	if failed == nil {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.log.Warn("appends not announced", "appends", len(failed), "err", cause)
	a.failed = append(a.failed, failed...)
	a.startTimer(AnnounceHold)
}

// Close announces everything held, in one try that ctx bounds. Nothing is announced afterwards.
func (a *Announcer) Close(ctx context.Context) {
	a.mu.Lock()
	a.closed = true
	if a.timer != nil && a.timer.Stop() {
		a.ticks.Done()
	}
	a.mu.Unlock()
	a.end()
	a.ticks.Wait()
	a.mu.Lock()
	due := a.failed
	for _, h := range a.order {
		due = a.appendHeld(due, h)
	}
	a.order, a.failed = nil, nil
	a.mu.Unlock()
	if len(due) > 0 {
		a.announce(ctx, due)
	}
}

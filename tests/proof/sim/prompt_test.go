//go:build proof

package sim

import (
	"time"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/lifecycle"
)

// promptly is how long in calm times an append may call for a supervisor, or an offer stand, before
// one sees to it: the hold, a turn of the supervisors, and as long again.
const promptly = 5 * time.Second

// prompt is what the judge knows of how soon supervisors are told. Sweeps find all that is
// forgotten, sooner or later: in calm times nothing is to wait for them.
type prompt struct {
	calls map[string]call          // appends that call for a supervisor, by ticket: the newest
	seen  map[broker.OfferKey]bool // offers that a supervisor has read
	lost  map[string]bool          // tickets whose wake-up a fault has deleted, until one is armed again
}

// call is an append whose writer has not announced it yet, nor settled what it calls for.
type call struct {
	seq uint64
	at  time.Time
	by  *process
}

// called notes an append and what it calls for.
func (j *judge) called(by *process, ticket string, seq uint64, attention lifecycle.Attention) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.prompt.calls == nil {
		j.prompt.calls, j.prompt.seen = map[string]call{}, map[broker.OfferKey]bool{}
	}
	if word, _, ended := attention.Ended(); word == lifecycle.AttentionNone && !ended {
		delete(j.prompt.calls, ticket)
		return
	}
	j.prompt.calls[ticket] = call{seq: seq, at: time.Now(), by: by}
}

// answered notes that an append was announced, or settled.
func (j *judge) answered(ticket string, seq uint64) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.prompt.calls[ticket].seq == seq {
		delete(j.prompt.calls, ticket)
	}
}

// loseWakeUps notes that a fault deletes all wake-ups. A supervisor that armed one just before may
// acknowledge the earlier one just after.
func (j *judge) loseWakeUps() {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.prompt.lost = j.l.m.WakeUps()
	j.l.m.DeleteTimers()
}

// armed notes a wake-up that was armed.
func (j *judge) armed(ticket string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	delete(j.prompt.lost, ticket)
}

// doneWith notes that a supervisor has acknowledged a wake-up that has fired: by then the handoff
// has closed, or another wake-up was armed. Else a sweep makes up for it, minutes later.
func (j *judge) doneWith(by *process, w broker.WakeUp) {
	if w.Attention != "" || by.isDead() {
		return
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	if h, known := j.heads[w.Ticket]; known && !h.state.Closed && !j.prompt.lost[w.Ticket] && !j.l.m.WakeUps()[w.Ticket] {
		j.faultLocked("%s is done with a wake-up of %s, which is %s, and nothing will wake that again", by.name, w.Ticket, h.state.Phase)
	}
}

// readOffer notes that a supervisor has read an offer that stands.
func (j *judge) readOffer(key broker.OfferKey) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.prompt.seen != nil {
		j.prompt.seen[key] = true
	}
}

// checkPrompt: in calm times appends are announced, and offers that stand are seen to. It
// wants j.mu held.
func (j *judge) checkPrompt() {
	calm := epoch.Add(faultsFor + settledAfter)
	for ticket, c := range j.prompt.calls {
		if c.at.After(calm) && time.Since(c.at) > promptly && !c.by.isDead() {
			j.faultLocked("append %d of %s calls for a supervisor, and is not announced after %v", c.seq, ticket, time.Since(c.at))
		}
	}
	_ = j.l.m.OffersBetween(j.l.ctx, calm, time.Now().Add(-promptly), func(key broker.OfferKey, at time.Time) error {
		if !j.prompt.seen[key] {
			j.faultLocked("offer %d of %s stands for %v, and no supervisor has seen to it", key.Sequence, key.Ticket, time.Since(at))
		}
		return nil
	})
}

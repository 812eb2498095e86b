package brokertest

import (
	"context"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/lifecycle"
	"github.com/agenthandoff/handoff/protocol"
)

// announcements delivers the announcements of some tickets until the case ends.
func (k *kit) announcements(tickets ...string) <-chan broker.WakeUp {
	ctx, cancel := context.WithCancel(k.ctx)
	all, ended := make(chan broker.WakeUp, 100), make(chan error, 1)
	go func() {
		ended <- k.Due(ctx, func(w broker.WakeUp, done func()) {
			for _, ticket := range tickets {
				if w.Ticket == ticket {
					all <- w
				}
			}
			done()
		})
	}()
	k.Cleanup(func() { cancel(); receive(k, "the end of Due", ended) })
	return all
}

func (k *kit) appendAs(ticket string, after uint64, attention lifecycle.Attention) uint64 {
	k.Helper()
	seq, err := k.Append(k.ctx, ticket, after, protocol.NewTicket(), attention, []byte("x"))
	k.must(err)
	return seq
}

func (k *kit) wantAnnounced(all <-chan broker.WakeUp, want broker.WakeUp) {
	k.Helper()
	if got := receive(k, "an announcement", all); got != want {
		k.Errorf("announced %+v, want %+v", got, want)
	}
}

func announced(k *kit) {
	ticket := protocol.NewTicket()
	all := k.announcements(ticket)
	head := k.appendAs(ticket, 0, lifecycle.AttentionNone)
	ended := lifecycle.EndedOffer{Agent: "a", Lane: protocol.Low, Offer: head}
	for attention, as := range map[lifecycle.Attention]lifecycle.Attention{
		lifecycle.AttentionNow: lifecycle.AttentionNow, "": lifecycle.AttentionNow, "of a later version": "of a later version",
		lifecycle.AttentionLater: lifecycle.AttentionLater, lifecycle.AttentionNone.WithEnded(ended): lifecycle.AttentionNone.WithEnded(ended),
	} {
		head = k.appendAs(ticket, head, attention)
		k.wantAnnounced(all, broker.WakeUp{Ticket: ticket, Seq: head, Attention: as})
	}
	// The ended offer is announced at once, and the append later.
	head = k.appendAs(ticket, head, lifecycle.AttentionLater.WithEnded(ended))
	k.wantAnnounced(all, broker.WakeUp{Ticket: ticket, Seq: head, Attention: lifecycle.AttentionNone.WithEnded(ended)})
	k.wantAnnounced(all, broker.WakeUp{Ticket: ticket, Seq: head, Attention: lifecycle.AttentionLater})
}

func notAnnounced(k *kit) {
	superseded, closed, settled, last := protocol.NewTicket(), protocol.NewTicket(), protocol.NewTicket(), protocol.NewTicket()
	all := k.announcements(superseded, closed, settled, last)
	head := k.appendAs(superseded, 0, lifecycle.AttentionLater)
	head = k.appendAs(superseded, head, lifecycle.AttentionLater)
	k.appendAs(closed, k.appendAs(closed, 0, lifecycle.AttentionLater), lifecycle.AttentionNone)
	k.Settled(settled, k.appendAs(settled, 0, lifecycle.AttentionLater))
	end := k.appendAs(last, 0, lifecycle.AttentionLater)
	got := map[broker.WakeUp]bool{receive(k, "an announcement", all): true, receive(k, "an announcement", all): true}
	for _, want := range []broker.WakeUp{{Ticket: superseded, Seq: head, Attention: lifecycle.AttentionLater}, {Ticket: last, Seq: end, Attention: lifecycle.AttentionLater}} {
		if !got[want] {
			k.Errorf("announced %+v, want %+v among them", got, want)
		}
	}
	select {
	case w := <-all:
		k.Errorf("announced %+v as well", w)
	default:
	}
}

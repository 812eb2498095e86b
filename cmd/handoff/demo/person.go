package demo

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/google/uuid"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/protocol"
	"github.com/agenthandoff/handoff/worker"
)

// houseRules are what the demo answers when the inspector asks what is long.
var houseRules = limits{FileLines: 500, FunctionLines: 70}

// decision is a person's answer to what comes first.
type decision struct {
	First string `json:"first"`
	Why   string `json:"why"`
	By    string `json:"by"`
}

// decide plays a person who has to say which finding comes first: what somebody
// wrote down as broken, then what is hardest to read.
func decide(i inspection) decision {
	d := decision{By: protocol.Human}
	switch {
	case len(i.Marks) > 0 && i.Marks[0].Word == "FIXME":
		m := i.Marks[0]
		d.First = fmt.Sprintf("%s:%d, %s %s", m.Path, m.Line, m.Word, m.Text)
		d.Why = "Somebody knew that it is broken, and wrote it down instead of mending it."
	case len(i.LongFunctions) > 0:
		f := i.LongFunctions[0]
		d.First = fmt.Sprintf("%s in %s:%d, %s long", f.Name, f.Path, f.Line, many(f.Lines, "line"))
		d.Why = "The longest function is where the next mistake hides."
	case len(i.LongFiles) > 0:
		d.First = fmt.Sprintf("%s, %s long", i.LongFiles[0].Path, many(i.LongFiles[0].Lines, "line"))
		d.Why = "Nobody keeps a file as long as that in mind."
	case len(i.Marks) > 0:
		m := i.Marks[0]
		d.First = fmt.Sprintf("%s:%d, %s %s", m.Path, m.Line, m.Word, m.Text)
		d.Why = "It is the only kind of finding there is, so do it, or delete it."
	case len(i.LargeBinaries) > 0:
		d.First = fmt.Sprintf("%s, %s", i.LargeBinaries[0].Path, size(i.LargeBinaries[0].Size))
		d.Why = "Large files make every clone slow; somewhere else they do not."
	default:
		d.First, d.Why = "nothing: leave it as it is", "Nothing was found that needs care."
	}
	return d
}

// personLease is how long the person may take between two signs of life.
const personLease = time.Minute

// playPerson claims what was escalated to a person, decides, hands on and
// completes: what a person does with handoff claim, ack, submit and complete.
func playPerson(ctx context.Context, r relay) error {
	if err := r.b.EnsureQueue(ctx, protocol.Human); err != nil {
		return err
	}
	offers, err := r.b.Pull(ctx, protocol.Human, 1, 10*time.Second)
	if err != nil {
		return err
	}
	if len(offers) == 0 {
		return fmt.Errorf("the ledger has a handoff for a person, the queue has none")
	}
	holder := protocol.Holder{ID: uuid.NewString(), Agent: protocol.Human, LeaseMS: personLease.Milliseconds(),
		Slots: 1, Busy: 1, Polling: true, PID: os.Getpid(), StartedAt: time.Now().UTC()}
	if err := r.b.Beat(ctx, holder); err != nil {
		return err
	}
	defer r.b.RemoveHolder(context.WithoutCancel(ctx), holder.ID)
	claim, err := offers[0].Claim(ctx, holder, 0)
	if err != nil {
		return err
	}
	if err := claim.Acknowledge(ctx, protocol.Ack{Status: protocol.AckAccepted}, true); err != nil {
		return err
	}
	result, err := answerAsPerson(ctx, r, claim)
	if err != nil {
		return err
	}
	return claim.Complete(ctx, result)
}

func answerAsPerson(ctx context.Context, r relay, claim *broker.Claim) (protocol.Result, error) {
	pkg, err := protocol.DecodePackage(claim.Package)
	if err != nil {
		return protocol.Result{}, err
	}
	s, err := newShift(worker.Handoff{Ticket: claim.Ticket, Agent: claim.Agent, Attempt: claim.Attempt(), Package: pkg})
	if err != nil {
		return protocol.Result{}, err
	}
	var found inspection
	if err := s.earlier("inspection", &found); err != nil {
		return protocol.Result{}, err
	}
	decided := decide(found)
	return s.handOn(ctx, r, yield{body: decided, summary: decided.Why, decision: decided.First})
}

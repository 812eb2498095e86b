package lifecycle

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	p "github.com/agenthandoff/handoff/protocol"
)

// The words of the scenarios: what people, workers and supervisors do, and what
// comes of it.

// act is what an agent, a person or a supervisor does with the handoff: one append.
func (g *stage) act(word string, args []string) (Step, error) {
	g.t.Helper()
	if step, known, err := g.intervene(word, args); known {
		return step, err
	}
	if step, known, err := g.use(word, strings.Join(args, " ")); known {
		return step, err
	}
	meta, s := p.Meta{At: g.now, By: "test"}, g.state
	first := strings.Join(args, " ")
	holder := "w1"
	if s.Held() {
		holder = s.Holder
	}
	acknowledge := func(ack p.Ack) (Step, error) { return Acknowledge(s, g.claimant(holder), ack, false, g.now) }
	switch word {
	case "claim":
		claimed := &p.Claimed{Meta: meta, Offer: s.Offer, Agent: s.Agent, Holder: args[0], LeaseMS: lease}
		if len(args) > 1 {
			claimed.AckWithinMS = g.duration(strings.TrimPrefix(args[1], "ack_within=")).Milliseconds()
		}
		g.claims[args[0]] = s.Offer
		return StepOf(s, claimed)
	case "accept":
		return Acknowledge(s, g.claimant(first), p.Ack{Status: p.AckAccepted}, false, g.now)
	case "take_over":
		return g.takeOver(s, g.claimant(first))
	case "start":
		return StepOf(s, &p.Started{Meta: meta, Fence: s.Fence})
	case "extend":
		return Extend(s, holder, g.duration(first), "it takes longer", g.now)
	case "partial":
		return Complete(s, g.query(), p.Completed{Status: p.Partial}, nil)
	case "complete_with":
		return Complete(s, g.query(), p.Completed{Status: p.Success}, g.children(args))
	case "await":
		return Await(s, g.query(), s.Holder, g.children(args), nil, &p.Completed{Status: p.Success})
	case "await_again": // what an earlier attempt handed off
		return Await(s, g.query(), s.Holder, nil, g.numbers(args), &p.Completed{Status: p.Success})
	case "want", "want_key", "want_after": // a package, or a key of one
		return g.want(word, first, args[1:])
	case "release":
		var late *p.ResultParked
		if first == "half" {
			late = &p.ResultParked{Status: p.Partial}
		}
		return Release(s, g.query(), holder, "drain", late)
	case "reject":
		return acknowledge(p.Ack{Status: p.AckRejected, ReasonCode: "unable", Reason: "cannot", SuggestedAlternative: first})
	case "ask":
		ack := p.Ack{Status: p.AckConditional, NeedsContext: args}
		if estimate, said := strings.CutPrefix(args[len(args)-1], "estimate="); said {
			ack.NeedsContext, ack.EstimatedCompletionMS = args[:len(args)-1], g.duration(estimate).Milliseconds()
		}
		return acknowledge(ack)
	case "deadlock":
		return BreakDeadlock(s, g.query(), Deadlock{Cycle: []string{s.Ticket, "other"}, Agents: strings.Split(first, ","), Youngest: s})
	case "permission":
		return acknowledge(p.Ack{Status: p.AckConditional, NeedsPermission: args})
	case "defer":
		return acknowledge(p.Ack{Status: p.AckConditional, RetryAfterMS: g.duration(first).Milliseconds()})
	case "malformed":
		return MalformedResult(s, s.Holder, "it is no JSON", p.Failed{Result: []byte(`{"body":"{"}`)}, g.now)
	case "fail":
		return g.fail(meta, first)
	case "escalate":
		return Escalate(s, g.query(), holder, first, "as far as I see")
	case "hand_back":
		return RollBackHeld(s, g.query(), p.RolledBack{Meta: meta, Reason: "cannot go on", Result: []byte(`{}`)})
	case "handoff", "handoff_after", "goto", "goto_early":
		return g.handOn(word, g.numbers(args[:1])[0], args[1:])
	case "suspend":
		return Suspend(s, holder, g.numbers(args), g.now)
	}
	g.t.Fatalf("no word %q", word)
	return Step{}, nil
}

// want hands off what is found by a package, or by its key.
func (g *stage) want(word, what string, options []string) (Step, error) {
	key := p.ChildKey{Written: what}
	if word == "want_key" {
		key.Given = what
	}
	n, cell, made := FindChild(g.state, key)
	if made {
		return Adopt(g.state, g.state.Holder, []int{n}, g.now)
	}
	next := g.next(p.HandedOff{N: n, After: word == "want_after", Cell: cell, Key: key.Given, Written: key.Written}, options...)
	return HandOff(g.state, next, g.now)
}

// handOn hands off a child; goto is with the result, and goto_early a writer that does not wait for it.
func (g *stage) handOn(word string, n int, options []string) (Step, error) {
	next := g.next(p.HandedOff{N: n, After: word == "handoff_after", Goto: strings.HasPrefix(word, "goto")}, options...)
	if word != "goto" {
		return HandOff(g.state, next, g.now)
	}
	body := p.Completed{Status: p.Success}
	for _, option := range options {
		if used, ok := strings.CutPrefix(option, "used="); ok {
			usage := g.usage(used)
			body.Usage = &usage
		}
	}
	return Complete(g.state, g.query(), body, []Next{next})
}

// fail ends the attempt.
func (g *stage) fail(meta p.Meta, how string) (Step, error) {
	e := &p.Failed{Meta: meta, Fence: g.state.Fence, Attempt: g.state.Attempt, Code: "exit", Message: "exit status 1", Retryable: how != "permanent"}
	if after, ok := strings.CutPrefix(how, "retry_after="); ok {
		e.RetryAfterMS = g.duration(after).Milliseconds()
	}
	if used, ok := strings.CutPrefix(how, "used="); ok {
		usage := g.usage(used)
		e.Usage = &usage
	}
	return StepOf(g.state, e)
}

// use is what a holder says that may tell what it has used.
func (g *stage) use(word, said string) (step Step, known bool, err error) {
	s, usage := g.state, p.Usage{Tokens: 3}
	if said != "" && slices.Contains([]string{"spend", "progress", "complete"}, word) {
		usage = g.usage(said)
	}
	switch word {
	case "spend":
		step, err = Spend(s, s.Holder, usage, p.UsageReport, g.now)
	case "progress":
		progress := p.Progress{Percent: 10}
		if said != "" {
			progress.Usage = &usage
		}
		step, err = Progress(s, s.Holder, progress, g.now)
	case "complete":
		step, err = Complete(s, g.query(), p.Completed{Status: p.Success, Usage: &usage}, nil)
	default:
		return step, false, nil
	}
	return step, true, err
}

// usage is so many tokens, and after a slash so many millionths of cost.
func (g *stage) usage(text string) p.Usage {
	tokens, cost, _ := strings.Cut(text, "/")
	u := p.Usage{Tokens: int64(g.numbers([]string{tokens})[0])}
	if cost != "" {
		u.CostMicros = int64(g.numbers([]string{cost})[0])
	}
	return u
}

// children are what is handed off with these ordinals.
func (g *stage) children(args []string) (all []Next) {
	for _, n := range g.numbers(args) {
		all = append(all, g.next(p.HandedOff{N: n}))
	}
	return all
}

// intervene is what the source, a person, a supervisor or a former holder does.
func (g *stage) intervene(word string, args []string) (step Step, known bool, err error) {
	g.t.Helper()
	if step, known, err = g.atGate(word, args); known {
		return step, true, err
	}
	meta, s := p.Meta{At: g.now, By: By}, g.state
	switch word {
	case "answer", "permit", "deny":
		answer := p.Answer{By: p.Human, Text: "so", Permit: word == "permit", Deny: word == "deny", Question: QuestionOf(s).N}
		if s.Phase == p.Conditional {
			answer.By = "src"
		}
		for _, arg := range args {
			key, value, _ := strings.Cut(arg, "=")
			switch key {
			case "by":
				answer.By = value
			case "question":
				answer.Question = g.numbers([]string{value})[0]
			default:
				answer.LetOthers = arg == "others"
			}
		}
		step, err = Answer(s, g.query(), answer)
	case "cancel":
		step, err = Cancel(s, g.query(), "src", "enough", strings.Join(args, "") == "children")
	case "return":
		step, err = RollBack(s, g.query(), "src", "not theirs")
	case "take":
		step, err = TakeNow(s, g.query(), Claimant{Agent: args[0], Holder: args[1], LeaseMS: lease}, "faster")
	case "reroute":
		by, rest := "src", args[1:]
		if asks := QuestionOf(s).Kind; asks == asksAuthority {
			by = p.Human
		}
		if last := len(rest) - 1; last >= 0 && strings.HasPrefix(rest[last], "by=") {
			rest, by = rest[:last], rest[last][len("by="):]
		}
		if len(rest) > 0 && rest[0] == p.Human {
			by, rest = rest[0], rest[1:]
		}
		step, err = RerouteTo(s, g.query(), args[0], by, "better", g.newDeadline(rest))
	case "raise":
		by := p.Human
		if len(args) > 1 {
			by = strings.TrimPrefix(args[1], "by=")
		}
		step, err = Raise(s, g.query(), by, g.limits(args[0]).Granted())
	case "redrive":
		step, err = Redrive(s, "src", g.now)
	case "dismiss":
		step, err = Dismiss(s, "src", "seen", g.now)
	case "children":
		step, err = MarkChildren(s, g.query(), g.ends(args))
	case "chain": // the end of the child that it goes on with: an outcome, open or on
		n, how, _ := strings.Cut(args[0], ":")
		last := p.State{Ticket: p.ChildTicketN(ticket, g.numbers([]string{n})[0]), Closed: how != "open", Outcome: p.Outcome(how)}
		if how == "on" {
			last.Outcome, last.Children = p.OutcomeSuccess, &p.Children{Next: 1}
		}
		step, err = EndChain(s, g.query(), last)
	case "source": // how the attempt of its parent went
		parent := p.State{Ticket: "parent", Children: &p.Children{}}
		if args[0] != "ended" {
			parent.Children.After = p.Bits("").With(s.N - 1)
		}
		parent.Closed = args[0] != "open"
		step, err = FollowSource(s, parent, g.query())
	case "parent": // the state of a child's: open, received, closed or gone
		parent := p.State{Ticket: "parent", Children: &p.Children{}, Closed: args[0] == "closed"}
		switch args[0] {
		case "received":
			parent.Children.Received = p.Bits("").With(s.N - 1)
		case "gone":
			parent = p.State{}
		}
		step, err = SettleChild(s, parent, g.query())
	case "remembered": // the outcome that an index has of it, after the ledger has lost its end
		step, err = CloseLost(s, vectorEvent(p.EventSubmitted, meta).(*p.Submitted), p.Outcome(args[0]), "lost", g.now)
	case "arrived", "lost":
		step, err = SettleReturn(s, word == "arrived", "", g.now)
	case "accepts_late":
		wantStale(g.t, "a late acknowledgement", s, &p.Accepted{Meta: meta, Offer: g.claims[args[0]], Agent: s.Agent, Holder: args[0]})
	case "late":
		late := p.ResultParked{Holder: args[0], Fence: g.fences[args[0]], Status: p.Success, Usage: &p.Usage{Tokens: 5}}
		for _, arg := range args[1:] {
			switch arg {
			case "partial":
				late.Status = p.Partial
			case "malformed":
				late.Malformed = "it is no JSON"
			default:
				late.Vote = p.Vote(arg)
			}
		}
		wantStale(g.t, "a late result", s, &p.Completed{Meta: meta, Fence: late.Fence, Status: late.Status})
		step = Park(s, late, g.now)
	default:
		kind := p.EventType(word)
		if p.NewEvent(kind) == nil {
			return step, false, nil
		}
		step, err = StepOf(s, vectorEvent(kind, meta))
	}
	return step, true, err
}

// ends reads N:OUTCOME[:VOTE]… or N:OUTCOME:uses=TOKENS….
func (g *stage) ends(args []string) (ends []p.ChildClosed) {
	for _, arg := range args {
		n, outcome, _ := strings.Cut(arg, ":")
		outcome, vote, _ := strings.Cut(outcome, ":")
		end := p.ChildClosed{N: g.numbers([]string{n})[0], Outcome: p.Outcome(outcome)}
		if tokens, is := strings.CutPrefix(vote, "uses="); is {
			g.uses(&end, tokens)
		} else {
			end.Vote = p.Vote(vote)
		}
		ends = append(ends, end)
	}
	return ends
}

func (g *stage) numbers(args []string) []int {
	g.t.Helper()
	var out []int
	for _, arg := range args {
		n, err := strconv.Atoi(arg)
		if err != nil {
			g.t.Fatal(err)
		}
		out = append(out, n)
	}
	return out
}

func dutiesInWords(s p.State) string {
	d := DutiesOf(s)
	var words []string
	for _, duty := range []struct {
		is   bool
		word string
	}{{d.Offer, "offer"}, {d.WakeUp, "wake_up"}, {d.Children, "children"}, {d.Mark, "mark"}, {d.Return, "return"}, {d.CancelChildren, "cancel_children"}, {d.Source, "source"}, {d.Chain, "chain"}, {d.Bids, "bids"}, {d.BidAnswer, "bid_answer"}, {HasPendingDuties(s), "owes"}} {
		if duty.is {
			words = append(words, duty.word)
		}
	}
	if len(words) == 0 {
		return "nothing"
	}
	return strings.Join(words, " ")
}

func routingInWords(r *p.Routing) string {
	if r == nil {
		return "nothing"
	}
	words := "chose " + r.Choice
	for i, c := range r.Candidates {
		words += fmt.Sprintf("%s %s:%.2g", map[bool]string{true: " of"}[i == 0], c.Agent, c.Score)
	}
	if len(r.Excluded) > 0 {
		words += " without " + strings.Join(r.Excluded, ",")
	}
	if len(r.Warnings) > 0 {
		words += "; " + strings.Join(r.Warnings, ", ")
	}
	return words
}

// brief says events in few words.
func brief(events []p.Event) string {
	if len(events) == 0 {
		return "nothing"
	}
	var out []string
	for _, e := range events {
		word := string(e.EventType())
		switch e := e.(type) {
		case *p.Offered:
			word += fmt.Sprintf(" %s (%s)", e.Agent, e.Reason) + map[p.BreakerMark]string{p.BreakerProbe: " probe"}[e.Breaker]
			if e.Routing != nil && len(e.Routing.Warnings) > 0 {
				word += " warning"
			}
		case *p.Rerouted:
			word += " " + e.From + ">" + e.To
			if len(e.Override) > 0 {
				word += " override " + strings.Join(e.Override, ",")
			}
		case *p.Escalated:
			word += fmt.Sprintf(" %d %s>%s", e.Level, e.From, e.To)
		case *p.Deadlocked:
			word += " " + e.Agent
		case *p.TimedOut:
			word += " " + string(e.Clock)
		case *p.Closed:
			word += fmt.Sprintf(" %s (%s)", e.Outcome, e.Reason)
		case *p.LeaseLost:
			word += " " + e.Holder
			if e.Reason != "" {
				word += " (" + e.Reason + ")"
			}
		case *p.Extended:
			word += fmt.Sprintf(" +%s", e.Until.Sub(e.At))
		case *p.RetryScheduled:
			word += fmt.Sprintf(" +%s", e.Due.Sub(e.At))
		case *p.HandedOff:
			word += fmt.Sprintf(" %d", e.N)
		case *p.Barred:
			word += fmt.Sprintf(" %s %s", e.Code, e.Field)
		case *p.Adopted:
			word += fmt.Sprintf(" %v", e.Children)
		case *p.Suspended:
			word += fmt.Sprintf(" %v", e.Children)
		case *p.ChildrenClosed:
			for _, c := range e.Children {
				word += fmt.Sprintf(" %d:%s", c.N, c.Outcome)
				if c.Vote != "" {
					word += ":" + string(c.Vote)
				}
			}
		case *p.ChainEnded:
			word += " " + string(e.End.Outcome)
		case *p.Taken:
			word += " " + e.Agent
		case *p.ReturnSent:
			word += " " + e.To
		case *p.ResultParked:
			word += " " + e.Holder
		}
		out = append(out, word+briefOfGate(e))
	}
	return strings.Join(out, "; ")
}

// newDeadline is the deadline that a reroute sets, if it does.
func (g *stage) newDeadline(args []string) (at time.Time) {
	if len(args) > 0 {
		at = g.now.Add(g.duration(args[0]))
	}
	return at
}

// takeOver is a claimant's acceptance of an offer that another holder has, if that is gone.
func (g *stage) takeOver(s p.State, c Claimant) (Step, error) {
	verdict, lost := mustClaim(s, c, g.d, g.now)
	if verdict != Take {
		return lost, nil
	}
	t, err := Acknowledge(lost.State, c, p.Ack{Status: p.AckAccepted}, false, g.now)
	return lost.Then(t), err
}

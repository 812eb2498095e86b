package brokertest

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/protocol"
)

// wantsBranch is an agent that expects a branch, provides a list, and takes a summary alone.
func wantsBranch(id string) protocol.Profile {
	return protocol.Profile{ID: id, Capabilities: []protocol.Capability{{ID: "cap-" + id, Proficiency: 1}}, Contract: &protocol.Contract{
		ContextSchema: json.RawMessage(`{"required": ["variables"], "properties": {"variables": {"required": ["branch"]}}}`),
		ResultSchema:  json.RawMessage(`{"type": "array"}`), Modes: []protocol.TransferMode{protocol.TransferSummary}}}
}

func withBranch(p protocol.Package) protocol.Package {
	p.Context.Variables = map[string]json.RawMessage{"branch": json.RawMessage(`"main"`)}
	return p
}

func wantField(k *kit, err error, code protocol.Code, field string) {
	k.Helper()
	if e, ok := err.(*protocol.Error); !ok || e.Code != code || e.Field != field {
		k.Errorf("%v, want %s in %s", err, code, field)
	}
}

// testContractAtSubmission: what an agent expects is asked for before anything is written, of members
// too; one whose contract is not kept is passed over where a capability is named.
func testContractAtSubmission(k *kit) {
	r := k.familyKit()
	to := r.registerAgents(3)
	strict, free := to[0], to[1]
	r.must(r.b.PutProfile(r.ctx, wantsBranch(strict)))
	r.until("the contract is read", func() bool { // a follower may be behind
		d, err := r.b.Directory(r.ctx)
		r.must(err)
		profile, _ := d.Agent(strict)
		return profile.Contract != nil
	})
	keyed := pkg("lead", strict)
	keyed.Key = "contract"
	_, err := r.trySubmit(keyed)
	wantField(k, err, protocol.CodeContract, "context.variables")
	r.noHandoff(protocol.TicketForKey("lead", "contract"))
	other := withBranch(pkg("lead", strict))
	other.Context.ConversationHistory = []protocol.Message{protocol.Message(`{"role": "user", "content": "hello"}`)}
	_, err = r.trySubmit(other)
	wantField(k, err, protocol.CodeContract, "context.history_transfer.mode")
	_, err = r.trySubmit(pkg("lead", free, strict))
	wantField(k, err, protocol.CodeContract, "context.variables")
	each := pkg("lead", free, strict)
	each.Members, each.Target.Agents = []protocol.Member{{Target: protocol.Target{Agent: free}}, {Target: protocol.Target{Agent: strict}}}, nil
	_, err = r.trySubmit(each)
	wantField(k, err, protocol.CodeContract, "members[1].context.variables")
	each.Members[1].Variables = withBranch(each).Context.Variables
	_, err = r.trySubmit(each)
	r.must(err)

	byCapability := pkg("lead")
	byCapability.Type, byCapability.Target = protocol.Sequential, protocol.Target{Capability: "cap-" + strict}
	_, err = r.trySubmit(byCapability)
	wantField(k, err, protocol.CodeContract, "context.variables")
	r.must(r.b.PutProfile(r.ctx, protocol.Profile{ID: to[2], Capabilities: []protocol.Capability{{ID: "cap-" + strict, Proficiency: 0.1}}}))
	k.until("an agent that takes it", func() bool {
		head, err := r.trySubmit(byCapability)
		return err == nil && head.State.Agent == to[2]
	})
	if head := r.submit(withBranch(byCapability)); head.State.Agent != strict {
		r.Errorf("what the better agent expects goes to %s", head.State.Agent)
	}
	keyed = withBranch(keyed) // what was refused has taken no key
	first := r.submit(keyed)
	r.must(r.b.PutProfile(r.ctx, protocol.Profile{ID: strict, Contract: &protocol.Contract{ContextSchema: json.RawMessage("false")}}))
	if again, err := r.trySubmit(keyed); err != nil || again.Ticket != first.Ticket {
		r.Errorf("what was accepted once is refused later: %v", err)
	}
}

// testContractOfHandOff: a hand-off that the contract of its agent refuses leaves the result, as one
// that a limit refuses does; a child in the work is refused, and recorded as such.
func testContractOfHandOff(k *kit) {
	r := k.familyKit()
	to := r.registerAgents(2)
	r.must(r.b.PutProfile(r.ctx, wantsBranch(to[1])))
	head := r.submit(pkg("lead", to[0]))
	claim := r.accept(to[0])
	_, err := claim.HandOff(r.ctx, broker.Child{Package: pkg("", to[1])})
	wantCode(k, err, protocol.CodeContract)
	r.must(claim.Complete(r.ctx, protocol.Result{Command: goTo(to[1])}))
	s := r.state(head.Ticket)
	if s.Outcome != protocol.OutcomePartial || s.Barred == nil || s.Barred.Code != protocol.CodeContract || s.Barred.Count != 2 || s.Children != nil {
		r.Errorf("outcome %s, barred %+v, children %+v", s.Outcome, s.Barred, s.Children)
	}

	sent := withBranch(pkg("lead", to[0])) // no mode is named: the agent that gets it says which
	sent.Context.ConversationHistory = []protocol.Message{protocol.Message(`{"role": "user", "content": "hello"}`)}
	head = r.submit(sent)
	r.must(r.accept(to[0]).Complete(r.ctx, protocol.Result{Command: goTo(to[1])}))
	got, err := protocol.DecodePackage(r.accept(to[1]).Package)
	if c := got.Context; err != nil || c.HistoryTransfer.Mode != protocol.TransferSummary || len(c.ConversationHistory) != 0 || c.Summary == "" {
		r.Errorf("%v, %+v", err, c)
	}
}

// testResultSchemaOfContract: where a package has no schema, its agent's stands in it, in the claim and
// in one that is resumed. A package keeps its own.
func testResultSchemaOfContract(k *kit) {
	r := k.familyKit()
	agent := r.registerAgents(1)[0]
	r.must(r.b.PutProfile(r.ctx, wantsBranch(agent)))
	fails := func(body string) bool {
		once, sent := 1, withBranch(pkg("lead", agent))
		sent.Policy.MaxAttempts = &once
		r.submit(sent)
		claim := r.accept(agent)
		resumed, err := k.brokerOver(k.Engine).Resume(r.ctx, claim.Lease())
		r.must(err)
		if string(resumed.Package) != string(claim.Package) || !strings.Contains(string(claim.Package), `"output_schema":{"type":"array"}`) {
			r.Errorf("the claim has %s, and the resumed one %s", claim.Package, resumed.Package)
		}
		err = resumed.Complete(r.ctx, protocol.Result{Body: json.RawMessage(body)})
		if err != nil {
			wantField(k, err, protocol.CodeOutputSchema, "result.body")
		}
		return err != nil
	}
	if fails(`[1]`) || !fails(`{"a": 1}`) {
		r.Errorf("a list is what it provides, and an object is not")
	}
	own := withBranch(pkg("lead", agent))
	own.Expectations.OutputSchema = json.RawMessage(`{"type": "object"}`)
	r.submit(own)
	r.must(r.accept(agent).Complete(r.ctx, protocol.Result{Body: json.RawMessage(`{"a": 1}`)}))
}

// testMaxContextTokens: each agent gets as much of a conversation as it takes, and the ledger has all
// of it, for the digest and for the agent that is next.
func testMaxContextTokens(k *kit) {
	r := k.familyKit()
	to := r.registerAgents(2)
	r.must(r.b.PutProfile(r.ctx, protocol.Profile{ID: to[0], MaxContextTokens: 60}))
	sent := pkg("lead", to[0])
	sent.Key = "bounded"
	for i := range 40 {
		sent.Context.ConversationHistory = append(sent.Context.ConversationHistory, protocol.Message(fmt.Sprintf(`{"role":"user","content":"message %d"}`, i)))
	}
	head := r.submit(sent)
	claim := r.accept(to[0])
	got, err := protocol.DecodePackage(claim.Package)
	t := got.Context.HistoryTransfer
	if n := protocol.ConversationTokens(got.Context.ConversationHistory); err != nil || n == 0 || n > 60 || t.MaxTokens != 60 || t.Tokens != n || t.Omitted == 0 || t.OriginalTokens <= 60 {
		r.Errorf("%v, %d tokens, %+v", err, n, t)
	}
	r.must(r.b.PutProfile(r.ctx, protocol.Profile{ID: to[0], MaxContextTokens: 30}))
	if again, err := r.trySubmit(sent); err != nil || again.Ticket != head.Ticket {
		r.Errorf("the same package is another where the bound is: %v", err)
	}
	r.must(claim.Complete(r.ctx, protocol.Result{Command: goTo(to[1])}))
	if got, err = protocol.DecodePackage(r.accept(to[1]).Package); err != nil || len(got.Context.ConversationHistory) != 40 {
		r.Errorf("%v, the next agent gets %d messages of 40", err, len(got.Context.ConversationHistory))
	}
}

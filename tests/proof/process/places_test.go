//go:build proof

package process

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/protocol"
)

// racers is how many submit, and how many hold a handoff and hand off from it.
const racers = 20

// roundTimeout bounds a round, which starts some 120 processes, on a busy machine.
const roundTimeout = 10 * time.Minute

// TestLastPlacesOfHolders: twenty submitters and twenty holders, ten of whom hold returns, race for
// the last five places of a workflow, and then twenty for those of one account. Most are killed at
// any moment, also between a place that is kept and the hand-off. In the end exactly five are begun.
func TestLastPlacesOfHolders(t *testing.T) {
	url := supervisedNode(t, 1)
	env := []string{"NATS_URL=" + url}
	b := dial(t, url)
	for _, id := range []string{"clerk", "lead", "hand"} {
		putAgent(t, b, protocol.Profile{ID: id})
	}
	patience := roundTimeout.Milliseconds() // no agent is absent, however slowly the handoffs are claimed
	if _, err := b.PutFleet(t.Context(), protocol.Fleet{Policy: protocol.PolicyOverrides{AckTimeoutMS: &patience}}, 0); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		startHandoff(t, "supervisor", env, "supervise")
	}
	hand := startHandoff(t, "hand", env, "work", "--env", "all", "--agent", "hand", "--", "echo", "done")
	defer hand.Kill()
	rounds := 1
	if long() {
		rounds = 10
	}
	for round := range rounds {
		ctx, cancel := context.WithTimeout(t.Context(), roundTimeout)
		r := &placeRace{T: t, ctx: ctx, b: b, env: env, workflow: fmt.Sprint("P", round), chance: rand.New(rand.NewPCG(uint64(time.Now().UnixNano()), 1))}
		r.ofWorkflow()
		r.ofAccount()
		cancel()
	}
}

type placeRace struct {
	*testing.T
	ctx      context.Context
	b        *broker.Broker
	env      []string
	workflow string
	chance   *rand.Rand
}

// ofWorkflow races for the last places of a workflow.
func (r *placeRace) ofWorkflow() {
	r.Helper()
	most := racers + places
	if _, err := r.b.OpenWorkspace(r.ctx, r.workflow, protocol.WorkspaceLimits{MaxHandoffs: &most}, protocol.Human); err != nil {
		r.Fatal(err)
	}
	for i := range racers {
		args := []string{"submit", "--reason", "r", "--task", fmt.Sprint(i), "--workflow", r.workflow, "--to", "lead"}
		if i%2 == 0 { // its return comes to lead
			args = append(args[:len(args)-1], "hand", "--from", "lead", "--type", "delegation", "--return-timeout", "1h")
		}
		p := startHandoff(r.T, "holder", r.env, args...)
		if p.Wait(); p.ExitCode() != 0 {
			r.Fatal(p.Output())
		}
	}
	leases := r.claim(racers)
	var all []*startedProcess
	for i := range racers {
		all = append(all,
			startHandoff(r.T, "submitter", r.env, "submit", "--to", "clerk", "--reason", "r", "--task", "t", "--workflow", r.workflow, "--key", fmt.Sprint(r.workflow, "-", i)),
			startHandoff(r.T, "handing", r.env, "submit", "--under", leases[i], "--to", "clerk", "--reason", "r", "--task", "t"))
	}
	killed := r.kill(all)
	for _, lease := range leases {
		if claim, err := r.b.Resume(r.ctx, lease); err != nil || claim.Complete(r.ctx, protocol.Result{Body: []byte(`"done"`)}) != nil {
			r.Fatalf("complete %s: %v", lease, err)
		}
	}
	w := r.settled()
	for i := 0; ; i++ { // what was given back is there for others
		pkg := protocol.Package{Reason: "r", Source: protocol.Human, Target: protocol.Target{Agent: "clerk"}, Task: protocol.Task{Description: "fill"}}
		pkg.Context.WorkflowID = r.workflow
		in, err := r.b.Prepare(r.ctx, pkg)
		if err == nil {
			_, err = r.b.Submit(r.ctx, in)
		}
		if errors.Is(err, &protocol.Error{Code: protocol.CodeLimitExceeded}) {
			r.Logf("%s: %d killed, %d places of %d were given back or never taken", r.workflow, killed, i, places)
			break
		}
		if err != nil || i > places {
			r.Fatalf("submission %d: %v", i, err)
		}
	}
	w = r.settled()
	begun := 0
	if err := eachOf(r.ctx, r.b, r.workflow, func(s protocol.State) {
		switch {
		case s.Target.Agent == "clerk" && s.Joined:
			begun++
		case s.N > 0 && s.Closed && s.Reason == string(protocol.CodeLimitExceeded):
			r.Errorf("%s was handed off, and has no place", s.Ticket)
		}
	}); err != nil {
		r.Fatal(err)
	}
	if begun != places || w.Drawn != most {
		r.Errorf("%s: %d have begun of %d, and %d places are counted of %d", r.workflow, begun, places, w.Drawn, most)
	}
}

// ofAccount races for the last handoffs of one account.
func (r *placeRace) ofAccount() {
	r.Helper()
	p := startHandoff(r.T, "holder", r.env, "submit", "--reason", "r", "--task", "account", "--to", "lead", "--max-handoffs", fmt.Sprint(places))
	if p.Wait(); p.ExitCode() != 0 {
		r.Fatal(p.Output())
	}
	lease := r.claim(1)[0]
	var all []*startedProcess
	for range racers {
		all = append(all, startHandoff(r.T, "handing", r.env, "submit", "--under", lease, "--to", "clerk", "--reason", "r", "--task", "t", "--max-handoffs", "0"))
	}
	killed := r.kill(all)
	claim, err := r.b.Resume(r.ctx, lease)
	for err == nil {
		child := protocol.Package{Reason: "r", Target: protocol.Target{Agent: "clerk"}, Task: protocol.Task{Description: "fill"}, Limits: &protocol.Limits{MaxHandoffs: new(int64)}}
		_, err = claim.HandOff(r.ctx, broker.Child{Package: child})
	}
	if !errors.Is(err, &protocol.Error{Code: protocol.CodeLimitExceeded}) {
		r.Fatal(err)
	}
	s := claim.State()
	made := s.Children.Made.Len()
	r.Logf("%s: %d killed, account %+v", r.workflow, killed, *s.Account)
	if made != places || s.Account.Used.Handoffs != places {
		r.Errorf("%d are handed off, and %d are counted, of %d", made, s.Account.Used.Handoffs, places)
	}
	if err := claim.Complete(r.ctx, protocol.Result{Body: []byte(`"done"`)}); err != nil {
		r.Fatal(err)
	}
}

// claim has lead accept what there is, and returns the leases.
func (r *placeRace) claim(n int) (leases []string) {
	r.Helper()
	for range n {
		p := startHandoff(r.T, "claim", r.env, "claim", "--agent", "lead", "--accept", "--wait", roundTimeout.String(), "--lease", roundTimeout.String(), "-o", "json")
		p.Wait()
		var held struct{ Lease string }
		if err := json.Unmarshal([]byte(p.Output()), &held); err != nil || held.Lease == "" {
			r.Fatalf("%v: %s", err, p.Output())
		}
		leases = append(leases, held.Lease)
	}
	return leases
}

// kill kills most processes, each at any moment, and waits for the others.
func (r *placeRace) kill(all []*startedProcess) (killed int) {
	r.chance.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	for _, p := range all[spared:] {
		time.Sleep(time.Duration(r.chance.IntN(30)) * time.Millisecond)
		if p.Running() {
			p.Kill()
			killed++
		}
	}
	for _, p := range all {
		p.Wait()
	}
	return killed
}

// settled waits until no place is kept for what is not there, and nothing waits for one.
func (r *placeRace) settled() (w protocol.Workspace) {
	r.Helper()
	poll(r.T, r.ctx, "places that settle", func() bool {
		var err error
		if w, err = r.b.Workspace(r.ctx, r.workflow); err != nil {
			r.Fatal(err)
		}
		for _, d := range w.Draws {
			if d.Fence != 0 {
				return false
			}
		}
		return settles(r.ctx, r.b, r.workflow)
	})
	return w
}

package broker

import (
	"context"
	"encoding/json"
	"time"

	"github.com/agenthandoff/handoff/protocol"
	"github.com/agenthandoff/handoff/protocol/lifecycle"
)

// Spend records what this attempt has used so far. What is no more than it had said changes
// nothing, and is no error.
func (c *Claim) Spend(ctx context.Context, usage protocol.Usage) error {
	if err := usage.Validate(); err != nil {
		return err
	}
	return c.spend(ctx, usage, protocol.UsageReport)
}

func (c *Claim) spend(ctx context.Context, usage protocol.Usage, source protocol.UsageSource) error {
	priced, err := c.price(ctx, &usage)
	if err != nil {
		return err
	}
	return c.appendReport(ctx, func(s protocol.State, now time.Time) (lifecycle.Step, error) {
		if err := c.checkAccepted(s); err != nil {
			return lifecycle.Step{}, err
		}
		return lifecycle.Spend(s, c.Holder.ID, *priced, source, now)
	})
}

func (c *Claim) price(ctx context.Context, usage *protocol.Usage) (*protocol.Usage, error) {
	s := c.LastState()
	return c.b.price(ctx, c.Agent, s.Usage.Said(s.Fence), usage)
}

// price completes a usage with its cost by the profile of the agent, where it names none: that of
// all that the attempt has said by now. Nil stays nil, and asks for nothing.
func (b *Broker) price(ctx context.Context, agent string, said protocol.Usage, usage *protocol.Usage) (*protocol.Usage, error) {
	if usage == nil || usage.IsZero() {
		return nil, nil
	}
	complete := *usage
	complete.Normalize()
	if complete.CostMicros != 0 || complete.Tokens == 0 {
		return &complete, nil
	}
	directory, _, err := b.recentAgent(ctx, agent)
	if err != nil {
		return nil, err
	}
	profile, _ := directory.Agent(agent)
	said.CostMicros = 0
	complete.CostMicros = profile.Price.Of(complete.Max(said)).CostMicros
	return &complete, nil
}

// validUsage is the usage of a result that is refused, unless that itself is what is wrong.
func validUsage(usage *protocol.Usage) *protocol.Usage {
	if usage == nil || usage.Validate() != nil {
		return nil
	}
	return usage
}

// tokenBytes is about how many bytes of JSON a token has, of a package that is not read for it.
const tokenBytes = 4

// meter estimates the tokens of a package, in the step that submits it, where a limit of tokens
// bounds the handoff. Others are not measured.
func meter(step *lifecycle.Step, body json.RawMessage, blob *protocol.BlobRef) {
	submitted := step.Events[0].(*protocol.Submitted)
	if l := submitted.Summary.Limits; l == nil || l.MaxTokens == nil {
		return
	}
	tokens := protocol.PackageTokens(body)
	if blob != nil {
		tokens = blob.Size / tokenBytes
	}
	submitted.Summary.Meter, step.State.Meter = tokens, tokens
}

// Raise adds to the limits of an open handoff. One that waits for its budget goes on then. Amounts
// are what is added to each limit; one that the handoff does not have is refused.
func (b *Broker) Raise(ctx context.Context, ticket, by string, more protocol.Amounts) (protocol.State, error) {
	if err := protocol.CheckBy("by", by); err != nil {
		return protocol.State{}, err
	}
	head, err := b.intervene(ctx, ticket, b.decisionDirectory, func(h Head, d *lifecycle.Directory, now time.Time) (lifecycle.Step, error) {
		return lifecycle.Raise(h.State, d, by, more, now)
	})
	return head.State, err
}

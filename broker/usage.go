package broker

import (
	"cmp"
	"context"
	"encoding/json"

	"github.com/agenthandoff/handoff/internal/lifecycle"
	"github.com/agenthandoff/handoff/protocol"
)

// Spend records the usage of this attempt so far. Repeating a usage that is not higher changes
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
	return c.reportWork(ctx, wantNothing, func(s protocol.State, q lifecycle.Query) (lifecycle.Step, error) {
		return lifecycle.Spend(s, c.Holder.ID, *priced, source, q.Now)
	})
}

func (c *Claim) price(ctx context.Context, usage *protocol.Usage) (*protocol.Usage, error) {
	s := c.LastState()
	return c.b.price(ctx, c.Agent, s.Usage.Said(s.Fence), usage)
}

// price adds to a usage its cost by the profile of the agent, if it has none: the cost of all usage
// that the attempt has reported so far. Nil stays nil, without a read.
func (b *Broker) price(ctx context.Context, agent string, said protocol.Usage, usage *protocol.Usage) (*protocol.Usage, error) {
	if usage == nil || usage.IsZero() {
		return nil, nil
	}
	complete := *usage
	complete.Normalize()
	if complete.CostMicros != 0 || complete.Tokens == 0 {
		return &complete, nil
	}
	profile, _, err := b.recentProfile(ctx, agent, profileFresh)
	if err != nil {
		return nil, err
	}
	said.CostMicros = 0
	complete.CostMicros = cmp.Or(profile, &protocol.Profile{}).Price.Of(complete.Max(said)).CostMicros
	return &complete, nil
}

// validUsage returns the usage of a refused result, unless the usage itself is invalid.
func validUsage(usage *protocol.Usage) *protocol.Usage {
	if usage == nil || usage.Validate() != nil {
		return nil
	}
	return usage
}

// tokenBytes is the approximate JSON size of a token, for a package that is not read to count them.
const tokenBytes = 4

// meter estimates the tokens of a package, in the step that submits it, if a limit of tokens
// applies to the handoff.
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

// Raise adds to the limits of an open handoff. A handoff that waits for its budget then continues.
// Amounts are added to each limit; an amount for a limit that the handoff does not have is refused.
func (b *Broker) Raise(ctx context.Context, ticket, by string, more protocol.Amounts) (protocol.State, error) {
	return b.intervene(ctx, ticket, by, wantAll, func(s protocol.State, q lifecycle.Query) (lifecycle.Step, error) {
		return lifecycle.Raise(s, q, by, more)
	})
}

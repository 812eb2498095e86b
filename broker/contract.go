package broker

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"time"

	"github.com/agenthandoff/handoff/protocol"
	"github.com/agenthandoff/handoff/protocol/lifecycle"
	"github.com/agenthandoff/handoff/protocol/record"
	"github.com/agenthandoff/handoff/protocol/schema"
)

// What an agent expects of a package is checked before the package is submitted or handed off, by the
// agent that would get it. What depends on the agent alone is put in when the agent gets the package:
// the schema of its results, and the bound of its conversation. The ledger has the package as its
// source gave it, with the digest of that, whichever agent gets it next.

// withContract is a directory that knows which agents a package does not suit.
func withContract(d *lifecycle.Directory, body json.RawMessage, c *protocol.Context) *lifecycle.Directory {
	if !d.WantsContract() {
		return d
	}
	return d.WithContract(func(agent *protocol.Profile) *protocol.Error {
		if mode := c.Transfer(); mode != "" && !agent.Contract.Accepts(mode) {
			words := make([]string, len(agent.Contract.Modes))
			for i, accepted := range agent.Contract.Modes {
				words[i] = string(accepted)
			}
			return protocol.Errorf(protocol.CodeContract, "context.history_transfer.mode",
				"%s takes a conversation as %s, this one comes as %s", agent.ID, strings.Join(words, ", "), mode)
		}
		if !agent.Contract.HasContextSchema() {
			return nil
		}
		bounded := protocol.Profile{ID: agent.ID, Contract: &protocol.Contract{Modes: agent.Contract.Modes}, MaxContextTokens: agent.MaxContextTokens}
		given, err := record.PackageContext(suited(body, &bounded))
		if err == nil {
			err = schema.CheckContext(agent.ID, agent.Contract.ContextSchema, given)
		}
		var refused *protocol.Error
		if err != nil && !errors.As(err, &refused) {
			refused = protocol.Errorf(protocol.CodeContract, "context", "%v", err)
		}
		return refused
	})
}

// suiting is withContract for a package as the ledger has it. One that it has let go of breaks nothing.
func (b *Broker) suiting(ctx context.Context, d *lifecycle.Directory, body json.RawMessage, blob *protocol.BlobRef) (*lifecycle.Directory, error) {
	if !d.WantsContract() {
		return d, nil
	}
	body, err := b.packageBody(ctx, body, blob)
	if errors.Is(err, ErrNotFound) {
		return d, nil
	}
	if err != nil {
		return d, err
	}
	pkg, err := protocol.DecodePackage(body)
	if err != nil {
		return d, err
	}
	return withContract(d, body, &pkg.Context), nil
}

// knowingPackage has decide choose no agent whose contract the package of a handoff breaks. The package
// is read only where decide would choose an agent that has a contract.
func (b *Broker) knowingPackage(ctx context.Context, decide Decider) Decider {
	return func(h Head, d *lifecycle.Directory, now time.Time) (lifecycle.Step, error) {
		asked := false
		step, err := decide(h, d.WithContract(func(*protocol.Profile) *protocol.Error {
			asked = true
			return nil
		}), now)
		if !asked {
			return step, err
		}
		submitted, err := b.readSubmitted(ctx, &h)
		if errors.Is(err, ErrNotFound) {
			return decide(h, d, now)
		}
		if err == nil {
			d, err = b.suiting(ctx, d, submitted.Package, submitted.Blob)
		}
		if err != nil {
			return lifecycle.Step{}, err
		}
		return decide(h, d, now)
	}
}

// suits tells whether a package may be changed for an agent.
func suits(agent *protocol.Profile) bool {
	return agent.MaxContextTokens > 0 || agent.HasResultSchema()
}

// suited is a package as an agent gets it: with the schema of its results where the package has none,
// and within its max_context_tokens. A package that cannot be read is left as it is.
func suited(body json.RawMessage, agent *protocol.Profile) json.RawMessage {
	needs := agent.MaxContextTokens > 0 && len(body) > agent.MaxContextTokens // a token has a byte or more
	if agent.HasResultSchema() && !needs {
		own, err := record.PackageOutputSchema(body)
		needs = err == nil && own == nil
	}
	if !needs {
		return body
	}
	pkg, err := protocol.DecodePackage(body)
	if err != nil {
		return body
	}
	changed := pkg.CutFor(agent)
	if agent.HasResultSchema() && len(pkg.Expectations.OutputSchema) == 0 {
		pkg.Expectations.OutputSchema, changed = agent.Contract.ResultSchema, true
	}
	if !changed {
		return body
	}
	next, err := protocol.EncodePackage(pkg)
	if err != nil {
		return body
	}
	return next
}

// suit gives a claim that was made from its lease the package as its agent gets it. A process that
// watches the directory reads nothing for that, and others only where the lease says that there is
// something to change.
func (c *Claim) suit(ctx context.Context, said bool) error {
	if !said && !c.b.watching.Load() {
		return nil
	}
	agent, err := c.b.profileOf(ctx, c.Agent)
	if err == nil {
		c.suitTo(&agent)
	}
	return err
}

func (c *Claim) suitTo(agent *protocol.Profile) {
	if c.suited = suits(agent); c.suited {
		c.given, c.Package = c.Package, suited(c.Package, agent)
	}
}

// packageAsGiven is the package as the ledger has it.
func (c *Claim) packageAsGiven() json.RawMessage {
	if c.given != nil {
		return c.given
	}
	return c.Package
}

// adaptMode changes the mode of a conversation that goes on with a result, where its package named
// none and the contract of the agent that gets it does not have the usual one.
func (c *Claim) adaptMode(ctx context.Context, own, pkg *protocol.Package) error {
	if own.Context.HistoryTransfer.Mode != "" || len(pkg.Context.ConversationHistory) == 0 || pkg.Target.Agent == "" {
		return nil
	}
	d, _, err := c.b.recentAgent(ctx, pkg.Target.Agent) // which its submission reads next
	if err != nil {
		return err
	}
	agent, _ := d.Agent(pkg.Target.Agent)
	pkg.AdaptMode(agent.Contract)
	return nil
}

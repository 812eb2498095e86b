package broker

import (
	"context"
	"encoding/json"
	"errors"
	"strings"

	"github.com/agenthandoff/handoff/internal/lifecycle"
	"github.com/agenthandoff/handoff/internal/record"
	"github.com/agenthandoff/handoff/internal/schema"
	"github.com/agenthandoff/handoff/protocol"
)

// An agent's contract is checked before a package is submitted or handed off to that agent. The
// parts that depend on the agent alone are added when the agent gets the package: the schema of its
// results, and the bound of its conversation. The ledger stores the package as its source gave it,
// with its digest, independent of the agent that gets it next.

// contractOf returns the check of a package against the contracts of agents. mode is that of its
// conversation.
func contractOf(body json.RawMessage, mode protocol.TransferMode) lifecycle.Contract {
	return func(agent *protocol.Profile) *protocol.Error {
		if mode != "" && !agent.Contract.Accepts(mode) {
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
	}
}

// storedContract is contractOf for a stored package. A package that the ledger has dropped breaks
// nothing.
func (b *Broker) storedContract(ctx context.Context, body json.RawMessage, blob *protocol.BlobRef) (lifecycle.Contract, error) {
	body, err := b.packageBody(ctx, body, blob)
	if errors.Is(err, ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	pkg, err := protocol.DecodePackage(body)
	return contractOf(body, pkg.Context.Transfer()), err
}

// knowingPackage calls decide, and once more with the contract that read returns if decide would
// choose an agent that has a contract: only then is the package read.
func knowingPackage(q lifecycle.Query, read func() (lifecycle.Contract, error), decide func(lifecycle.Query) (lifecycle.Step, error)) (lifecycle.Step, error) {
	if !q.HasContracts() {
		return decide(q)
	}
	asked, given := false, q
	given.Contract = func(*protocol.Profile) *protocol.Error {
		asked = true
		return nil
	}
	step, err := decide(given)
	if !asked {
		return step, err
	}
	if q.Contract, err = read(); err != nil {
		return lifecycle.Step{}, err
	}
	return decide(q)
}

// suits reports whether a package may be changed for an agent.
func suits(agent *protocol.Profile) bool {
	return agent.MaxContextTokens > 0 || agent.HasResultSchema()
}

// suited returns a package in the form for an agent: with the schema of its results if the package
// has none, and cut to its max_context_tokens. An unreadable package is returned unchanged.
func suited(body json.RawMessage, agent *protocol.Profile) json.RawMessage {
	needs := agent.MaxContextTokens > 0 && len(body) > agent.MaxContextTokens // a token has at least one byte
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

// suit applies the agent's contract to the package of a resumed claim. A process that watches the
// directory needs no read for it; others read the profile only if the lease records that it may
// change the package.
func (c *Claim) suit(ctx context.Context, said bool) error {
	if !said && !c.b.watching.Load() {
		return nil
	}
	agent, err := c.b.ownProfile(ctx, c.Agent)
	if err == nil {
		c.suitTo(agent)
	}
	return err
}

func (c *Claim) suitTo(agent *protocol.Profile) {
	if c.suited = suits(agent); c.suited {
		c.given, c.Package = c.Package, suited(c.Package, agent)
	}
}

// packageAsGiven returns the package as stored in the ledger.
func (c *Claim) packageAsGiven() json.RawMessage {
	if c.given != nil {
		return c.given
	}
	return c.Package
}

// adaptMode changes the mode of a conversation that is passed on with a result, if its package
// names no mode and the contract of the next agent does not accept the default one.
func (c *Claim) adaptMode(ctx context.Context, own, pkg *protocol.Package) error {
	if own.Context.HistoryTransfer.Mode != "" || len(pkg.Context.ConversationHistory) == 0 || pkg.Target.Agent == "" {
		return nil
	}
	agent, _, err := c.b.recentProfile(ctx, pkg.Target.Agent, profileFresh) // the submission reads it next
	if err == nil && agent != nil {
		pkg.AdaptMode(agent.Contract)
	}
	return err
}

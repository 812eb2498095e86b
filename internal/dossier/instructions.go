package dossier

import (
	"context"

	"github.com/agenthandoff/handoff/internal/brief"
	"github.com/agenthandoff/handoff/protocol"
)

// Instructions are a handoff as instructions for the agent that works on it.
type Instructions struct {
	Ticket string `json:"ticket"`
	Agent  string `json:"agent,omitempty"`
	Brief  string `json:"brief"` // Markdown
}

// InstructionsOf reads a handoff as instructions. CodeNotFound says that there is none, or that
// the ledger has dropped its package.
func InstructionsOf(ctx context.Context, r Reader, ticket string) (Instructions, error) {
	v, err := Show(ctx, r, ticket)
	if err != nil {
		return Instructions{}, err
	}
	if v.Decoded == nil {
		return Instructions{}, protocol.Errorf(protocol.CodeNotFound, "ticket", "the ledger has dropped the package of %s", ticket)
	}
	since := brief.Since{Trail: v.Trail}
	for _, change := range v.Changes {
		for _, event := range change.Record.Events {
			if answered, is := event.(*protocol.Answered); is {
				since.Answers = append(since.Answers, answered.Answer)
			}
		}
	}
	return Instructions{Ticket: v.Ticket, Agent: v.State.Agent, Brief: brief.Markdown(v.Decoded, v.State.State, since)}, nil
}

package broker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"slices"
	"strings"
	"time"

	"github.com/agenthandoff/handoff/protocol"
	"github.com/agenthandoff/handoff/protocol/lifecycle"
)

// WorkspaceHead is the last append of a workspace as a writer needs it. Without a workspace its
// sequence is 0.
type WorkspaceHead struct {
	Seq   uint64
	At    time.Time
	State protocol.Workspace
}

// Workspace reads what the handoffs of a workflow share from the leader. Where there is no such
// workspace the error is a *protocol.Error with CodeNotFound.
func (b *Broker) Workspace(ctx context.Context, name string) (protocol.Workspace, error) {
	head, err := b.workspaceHead(ctx, name)
	if err == nil && head.Seq == 0 {
		err = protocol.Errorf(protocol.CodeNotFound, "workspace", "no workflow is called %s; open it first", protocol.CutText(name, 64))
	}
	return head.State, err
}

// workspaceHead reads the head of a workspace, or one without a sequence.
func (b *Broker) workspaceHead(ctx context.Context, name string) (WorkspaceHead, error) {
	if err := protocol.CheckWorkspaceName("workspace", name); err != nil {
		return WorkspaceHead{}, err
	}
	return b.readWorkspace(ctx, protocol.WorkspaceID(name))
}

func (b *Broker) readWorkspace(ctx context.Context, id string) (WorkspaceHead, error) {
	entry, err := b.shared.WorkspaceHead(ctx, id)
	if errors.Is(err, ErrNotFound) {
		return WorkspaceHead{}, nil
	}
	if err != nil {
		return WorkspaceHead{}, err
	}
	var record protocol.WorkspaceRecord
	if err := json.Unmarshal(entry.Body, &record); err != nil || protocol.WorkspaceID(record.State.Name) != id {
		return WorkspaceHead{}, protocol.Errorf(protocol.CodeUnreadable, "workspace", "entry %d of %s is no workspace", entry.Seq, id)
	}
	return WorkspaceHead{Seq: entry.Seq, At: entry.At, State: record.State}, nil
}

// Workspaces returns all workspaces in the order of their names. Those that cannot be read are left
// out.
func (b *Broker) Workspaces(ctx context.Context) ([]protocol.Workspace, error) {
	var all []protocol.Workspace
	err := b.shared.EachWorkspace(ctx, func(id string) error {
		head, err := b.readWorkspace(ctx, id)
		switch {
		case errors.Is(err, &protocol.Error{Code: protocol.CodeUnreadable}):
			b.log.Warn("workspace not readable", "workspace", id, "err", err)
			return nil
		case err != nil || head.Seq == 0:
			return err
		}
		all = append(all, head.State)
		return nil
	})
	slices.SortFunc(all, func(a, b protocol.Workspace) int { return strings.Compare(a.Name, b.Name) })
	return all, err
}

// WorkspaceDecider returns what to append to a workspace; a step without events is nothing to do.
type WorkspaceDecider func(w protocol.Workspace, now time.Time) (lifecycle.WorkspaceStep, error)

// updateWorkspace reads the head of a workspace, appends what decide says, and begins again when
// another append came first. decide is called anew with each head, and reads what else it needs
// after that: what it has seen of a handoff is then never older than the workspace.
func (b *Broker) updateWorkspace(ctx context.Context, name string, decide WorkspaceDecider) (lifecycle.WorkspaceStep, error) {
	for try := 0; ; try++ {
		head, err := b.workspaceHead(ctx, name)
		if err != nil {
			return lifecycle.WorkspaceStep{}, err
		}
		step, err := decide(head.State, b.workspaceNow(head))
		if err != nil || len(step.Events) == 0 {
			return step, err
		}
		if err = b.appendWorkspace(ctx, head, step); !errors.Is(err, ErrConflict) {
			return step, err
		}
		if err := pauseAfterConflict(ctx, try, step.Events[0].Ticket); err != nil {
			return step, err
		}
	}
}

// workspaceNow is the later of the clock and what the head says.
func (b *Broker) workspaceNow(head WorkspaceHead) time.Time {
	now := b.clock().UTC().Truncate(time.Millisecond)
	for _, at := range []time.Time{head.At, head.State.UpdatedAt} {
		if at.After(now) {
			now = at.UTC().Truncate(time.Millisecond)
		}
	}
	return now
}

// pauseAfterConflict lets the others go first who write to the same workspace. Writers for different
// tickets pause for different times, and each for the same again: a simulation can be repeated.
func pauseAfterConflict(ctx context.Context, try int, ticket string) error {
	hash := fnv.New32a()
	_, _ = fmt.Fprint(hash, ticket, try)
	most := time.Duration(min(try+1, 20)) * time.Millisecond
	pause := time.NewTimer(most * time.Duration(hash.Sum32()>>16) >> 16)
	defer pause.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-pause.C:
		return nil
	}
}

// appendWorkspace stores one append of a workspace. ErrConflict means that another one came first.
func (b *Broker) appendWorkspace(ctx context.Context, head WorkspaceHead, step lifecycle.WorkspaceStep) error {
	record := protocol.WorkspaceRecord{ID: newRecordID(), Events: step.Events, State: step.State}
	body, err := json.Marshal(record)
	if err != nil {
		return err
	}
	seq, err := b.shared.AppendWorkspace(ctx, protocol.WorkspaceID(step.State.Name), head.Seq, record.ID, body)
	if err == nil {
		b.log.Debug("append of a workspace", "workspace", step.State.Name, "events", len(step.Events), "seq", seq)
	}
	return err
}

// OpenWorkspace makes a workspace, or gives one that is open other limits.
func (b *Broker) OpenWorkspace(ctx context.Context, name string, limits protocol.WorkspaceLimits, by string) (protocol.Workspace, error) {
	if err := limits.Validate(); err != nil {
		return protocol.Workspace{}, err
	}
	step, err := b.updateWorkspace(ctx, name, func(w protocol.Workspace, now time.Time) (lifecycle.WorkspaceStep, error) {
		return lifecycle.OpenWorkspace(w, name, limits, by, now)
	})
	return step.State, err
}

// CloseWorkspace lets no handoff join a workspace any more. Those that are open go on.
func (b *Broker) CloseWorkspace(ctx context.Context, name, by string) (protocol.Workspace, error) {
	if _, err := b.Workspace(ctx, name); err != nil {
		return protocol.Workspace{}, err
	}
	step, err := b.updateWorkspace(ctx, name, func(w protocol.Workspace, now time.Time) (lifecycle.WorkspaceStep, error) {
		return lifecycle.CloseWorkspace(w, by, now)
	})
	return step.State, err
}

// ResolveVariables sets variables of a workspace from outside of the work.
func (b *Broker) ResolveVariables(ctx context.Context, name string, set lifecycle.Setting) (protocol.Workspace, error) {
	if _, err := b.Workspace(ctx, name); err != nil {
		return protocol.Workspace{}, err
	}
	set.Ticket = ""
	var err error
	if set.Values, err = b.variables(ctx, set.Values); err != nil {
		return protocol.Workspace{}, err
	}
	step, err := b.updateWorkspace(ctx, name, func(w protocol.Workspace, now time.Time) (lifecycle.WorkspaceStep, error) {
		return lifecycle.SetVariables(w, set, now)
	})
	return step.State, err
}

// variables checks values and takes secrets out of them.
func (b *Broker) variables(ctx context.Context, values map[string]json.RawMessage) (map[string]json.RawMessage, error) {
	if err := protocol.CheckVariables(values); err != nil {
		return nil, err
	}
	body, err := json.Marshal(values)
	if err != nil {
		return nil, err
	}
	redactor, err := b.redaction()
	if err != nil {
		return nil, err
	}
	if body, err = redactor.Variables(ctx, body); err != nil {
		return nil, fmt.Errorf("redact variables: %w", err)
	}
	var stored map[string]json.RawMessage
	err = json.Unmarshal(body, &stored)
	return stored, err
}

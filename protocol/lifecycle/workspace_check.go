package lifecycle

import (
	"fmt"

	p "github.com/agenthandoff/handoff/protocol"
)

// CheckWorkspace tells whether a workspace after an append is one that can be, and can follow the
// one before. Its error is a bug of a writer. Verification uses it; nothing is decided by it.
func CheckWorkspace(before, after p.Workspace) error {
	if err := checkLocks(after); err != nil {
		return err
	}
	if err := checkWaits(after); err != nil {
		return err
	}
	places := map[string]bool{}
	for _, d := range after.Draws {
		if places[d.Ticket] {
			return fmt.Errorf("%s has two places", d.Ticket)
		}
		places[d.Ticket] = true
	}
	most := after.Limits.MaxHandoffs
	switch {
	case before.Name != "" && before.Name != after.Name:
		return fmt.Errorf("%s became %s", before.Name, after.Name)
	case after.Drawn-len(after.Draws) < before.Drawn-len(before.Draws), after.Grants < before.Grants: // what has ended stays counted
		return fmt.Errorf("%d handoffs and %d grants became %d and %d", before.Drawn, before.Grants, after.Drawn, after.Grants)
	case after.Drawn > before.Drawn && (most != nil && after.Drawn > *most || !before.ClosedAt.IsZero()):
		return fmt.Errorf("%d handoffs have joined, which is one too many", after.Drawn)
	case len(after.Draws) > after.Drawn, len(after.Draws) > p.WorkspaceDrawsMax, len(after.Log) > p.WorkspaceLogMax:
		return fmt.Errorf("%d places of %d handoffs, %d of them in the log", len(after.Draws), after.Drawn, len(after.Log))
	}
	for name, was := range before.Variables {
		is, there := after.Variables[name]
		if !there || is.Version < was.Version || is.Version > was.Version+1 || is.Version == was.Version && string(is.Value) != string(was.Value) {
			return fmt.Errorf("variable %s: version %d became %d", name, was.Version, is.Version)
		}
	}
	return nil
}

// checkLocks: no lock stands beside one that it excludes, but for those of one lineage, and each is
// of a handoff that has a place.
func checkLocks(w p.Workspace) error {
	if len(w.Locks) > p.WorkspaceLocksMax {
		return fmt.Errorf("%d locks", len(w.Locks))
	}
	for i, l := range w.Locks {
		if _, drawn := w.Draw(l.Ticket); !drawn || l.Seq == 0 || l.Seq > w.Grants {
			return fmt.Errorf("%s has the lock %d on %s, and no place", l.Ticket, l.Seq, l.Path)
		}
		for _, o := range w.Locks[:i] {
			if l.Excludes(o.LockPath) && !lineageIn(w, l.Ticket)[o.Ticket] && !lineageIn(w, o.Ticket)[l.Ticket] {
				return fmt.Errorf("%s has %s and %s has %s", l.Ticket, l.Path, o.Ticket, o.Path)
			}
		}
	}
	return nil
}

// checkWaits: who waits has a place, waits for one thing, for what is not free, and never for
// itself.
func checkWaits(w p.Workspace) error {
	waits := map[string]bool{}
	for i, wait := range w.Waiting {
		if _, drawn := w.Draw(wait.Ticket); !drawn || waits[wait.Ticket] {
			return fmt.Errorf("%s waits twice, or has no place", wait.Ticket)
		}
		waits[wait.Ticket] = true
		if len(blockers(w, wait.Ticket, wait.Locks, w.Waiting[:i])) == 0 && len(w.Locks)+len(wait.Locks) <= p.WorkspaceLocksMax {
			return fmt.Errorf("%s waits for %s, which is free", wait.Ticket, pathWords(wait.Locks))
		}
		if cycle := cycleThrough(w, wait.Ticket); cycle != nil {
			return fmt.Errorf("%s waits for itself, through %v", wait.Ticket, cycle)
		}
	}
	return nil
}

// cycleThrough returns the handoffs through which one that waits does so for itself.
func cycleThrough(w p.Workspace, ticket string) []string {
	seen := map[string]bool{}
	var follow func(of string, path []string) []string
	follow = func(of string, path []string) []string {
		for _, b := range Blockers(w, of) {
			if b.Ticket == ticket {
				return append(path, of)
			}
			if !seen[b.Ticket] {
				seen[b.Ticket] = true
				if found := follow(b.Ticket, append(path, of)); found != nil {
					return found
				}
			}
		}
		return nil
	}
	return follow(ticket, nil)
}

package protocol

import (
	"cmp"
	"encoding/json"
	"path"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"
)

// Limits of a workspace.
const (
	// WorkspaceBytesMax is the largest state of a workspace, in bytes of JSON.
	WorkspaceBytesMax = 64 << 10
	// WorkspaceDrawsMax is how many open handoffs one workspace has at once.
	WorkspaceDrawsMax = 256
	// WorkspaceLocksMax is how many locks one workspace has, and how many may wait.
	WorkspaceLocksMax = 256
	// VariablesMax is how many variables one workspace has. VariableBytesMax is the largest value, in
	// bytes of JSON; larger values are artifacts.
	VariablesMax, VariableBytesMax = 512, 4 << 10
	// WorkspaceLogMax is how many of the last handoffs a workspace remembers.
	WorkspaceLogMax = 16
	// HandoffsMax is the highest limit of handoffs of a workspace.
	HandoffsMax = 1000
	// LockPathsMax is how many locks one handoff declares or requests at once.
	LockPathsMax, LockPathBytesMax = 64, 512
	// lockWaitDefaultMS is how long a handoff waits for the locks that it declares.
	lockWaitDefaultMS, LockWaitMaxMS = 5 * 60_000, 30 * 24 * 3_600_000
)

// Workspace is the shared state of the handoffs of one workflow, computed from its events: the
// number of handoffs, locks on paths, and variables.
type Workspace struct {
	Name      string          `json:"name"`
	Limits    WorkspaceLimits `json:"limits,omitzero"`
	OpenedAt  Time            `json:"opened_at"`
	UpdatedAt Time            `json:"updated_at"`
	ClosedAt  Time            `json:"closed_at,omitzero"` // no further handoff may join
	Drawn     int             `json:"drawn"`              // handoffs that have joined so far
	Draws     []Draw          `json:"draws,omitempty"`    // the open ones, oldest first
	Locks     []Lock          `json:"locks,omitempty"`
	Waiting   []LockWait      `json:"waiting,omitempty"` // in the order of the requests
	Grants    uint64          `json:"grants,omitempty"`  // of locks so far; the seq of the last one
	// Variables by name.
	Variables map[string]Variable `json:"variables,omitempty"`
	Log       []Joined            `json:"log,omitempty"` // the last handoffs that joined, newest last
}

// WorkspaceLimits bound the handoffs of a workflow. Absent is no limit, and 0 allows none.
type WorkspaceLimits struct {
	MaxHandoffs *int `json:"max_handoffs,omitempty"`
	// Agents lists patterns of agents that may join through a gateway, in addition to the lineage
	// within it. An empty list allows none. The agent whose submission through a gateway opened the
	// workspace is listed.
	Agents []string `json:"agents,omitempty"`
}

// Draw is the place of an open handoff in its workspace.
type Draw struct {
	Ticket string `json:"ticket"`
	// Above is the nearest handoff above it that also has a place.
	Above string `json:"above,omitempty"`
	// For is the handoff whose attempt, under the Fence, reserved the place for its Child, the ticket
	// of the planned hand-off (of a member, of its group). A place that its handoff has taken has none
	// of the three.
	For   string `json:"for,omitempty"`
	Child string `json:"child,omitempty"`
	Fence uint64 `json:"fence,omitempty"`
}

// Joined is a line of a workspace's log.
type Joined struct {
	Ticket string `json:"ticket"`
	From   string `json:"from"`
	To     string `json:"to,omitempty"`
	At     Time   `json:"at"`
}

// LockMode selects whether a lock also excludes readers.
type LockMode string

const (
	// LockExclusive excludes every other lock. So does the empty mode.
	LockExclusive LockMode = "exclusive"
	// LockShared excludes exclusive locks.
	LockShared LockMode = "shared"
)

// LockModes lists all modes of a lock.
var LockModes = []LockMode{LockExclusive, LockShared}

// LockPath is a path that is locked or requested. A path that ends with a slash covers everything
// below it.
type LockPath struct {
	Path string   `json:"path"`
	Mode LockMode `json:"mode,omitempty"`
}

// Locks are the locks that a package declares: granted all together, or not at all.
type Locks struct {
	Paths []LockPath `json:"paths"`
	// WaitMS is lockWaitDefaultMS if absent.
	WaitMS *int64 `json:"wait_ms,omitempty" flag:"lock-wait" doc:"it waits for its locks for so long (default 5m; 0 is not at all)"`
}

// Wait returns how long a handoff waits for its locks; 0 without locks.
func (l *Locks) Wait() time.Duration {
	switch {
	case l == nil:
		return 0
	case l.WaitMS == nil:
		return lockWaitDefaultMS * time.Millisecond
	}
	return time.Duration(*l.WaitMS) * time.Millisecond
}

// Lock is a lock that a handoff has.
type Lock struct {
	LockPath
	Ticket string `json:"ticket"`
	// Fence is the fence of the attempt that requested the lock during its work; the lock ends with
	// that attempt. 0 marks a lock that the package declares.
	Fence uint64 `json:"fence,omitempty"`
	By    string `json:"by"`
	Seq   uint64 `json:"seq"` // counts the grants of the workspace
	At    Time   `json:"at"`
}

// LockWait is a request for locks that are not free. All of them are granted together.
type LockWait struct {
	Ticket string     `json:"ticket"`
	Locks  []LockPath `json:"locks"`
	Fence  uint64     `json:"fence,omitempty"`
	By     string     `json:"by"`
	Since  Time       `json:"since"`
	Until  Time       `json:"until,omitzero"`
}

// Variable is a value that the handoffs of a workflow share.
type Variable struct {
	Value   json.RawMessage `json:"value"`
	Version int             `json:"version"` // 1 is the first
	By      string          `json:"by"`
	Ticket  string          `json:"ticket,omitempty"` // none: set from outside of the work
	At      Time            `json:"at"`
}

// WorkspaceEventType names a fact of a workspace, in the past tense.
type WorkspaceEventType string

// The event types of a workspace.
const (
	WorkspaceOpened   WorkspaceEventType = "opened"
	WorkspaceLimited  WorkspaceEventType = "limited"
	WorkspaceClosed   WorkspaceEventType = "closed"
	WorkspaceReserved WorkspaceEventType = "reserved"
	WorkspaceDrawn    WorkspaceEventType = "drawn"
	WorkspaceReturned WorkspaceEventType = "returned"
	WorkspaceSettled  WorkspaceEventType = "settled"
	WorkspaceLocked   WorkspaceEventType = "locked"
	WorkspaceQueued   WorkspaceEventType = "queued"
	WorkspaceGranted  WorkspaceEventType = "granted"
	WorkspaceUnlocked WorkspaceEventType = "unlocked"
	WorkspaceExpired  WorkspaceEventType = "expired"
	WorkspaceSet      WorkspaceEventType = "set"
	WorkspaceResolved WorkspaceEventType = "resolved"
)

// WorkspaceEvent is one fact of a workspace. Each type uses some of the fields.
type WorkspaceEvent struct {
	Type   WorkspaceEventType `json:"type"`
	At     Time               `json:"at"`
	By     string             `json:"by,omitempty"`
	Name   string             `json:"name,omitempty"`   // opened
	Limits *WorkspaceLimits   `json:"limits,omitempty"` // opened, limited
	Ticket string             `json:"ticket,omitempty"` // of the handoff
	Above  string             `json:"above,omitempty"`  // drawn
	From   string             `json:"from,omitempty"`   // drawn
	To     string             `json:"to,omitempty"`     // drawn
	For    string             `json:"for,omitempty"`    // reserved
	Child  string             `json:"child,omitempty"`  // reserved
	Fence  uint64             `json:"fence,omitempty"`  // reserved, locked, queued, unlocked
	Locks  []LockPath         `json:"locks,omitempty"`  // locked, queued; unlocked: which ones, absent is all
	Until  Time               `json:"until,omitzero"`   // queued
	// Values are the variables of set and resolved.
	Values map[string]json.RawMessage `json:"values,omitempty"`
}

// WorkspaceRecord is one append of a workspace.
type WorkspaceRecord struct {
	ID     string           `json:"id"`
	Events []WorkspaceEvent `json:"events"`
	State  Workspace        `json:"state"`
}

// WorkspaceID returns the id of a workspace on the engine: the UUIDv5 of its name.
func WorkspaceID(name string) string {
	return uuid.NewSHA1(ticketSpace, []byte(name+"\x00workspace\x00")).String()
}

// CheckWorkspaceName checks the name of a workspace, which is that of its workflow.
func CheckWorkspaceName(field, name string) error {
	return cmp.Or(required(field, name), checkName(field, name)).orNil()
}

// Validate checks the limits.
func (l WorkspaceLimits) Validate() error {
	agents := l.Agents
	if len(agents) == 0 { // none is allowed
		agents = nil
	}
	return cmp.Or(optionalBetween("limits.max_handoffs", l.MaxHandoffs, 0, HandoffsMax), checkPatterns("limits.agents", agents)).orNil()
}

// CleanLocks checks the paths of a request for locks, and returns them cleaned and sorted.
// Duplicate paths of one mode are merged.
func CleanLocks(field string, locks []LockPath) ([]LockPath, error) {
	if len(locks) == 0 || len(locks) > LockPathsMax {
		return nil, Errorf(CodeInvalid, field, "must have from 1 to %d paths, not %d", LockPathsMax, len(locks))
	}
	var clean []LockPath
	for _, l := range locks {
		name, err := cleanLockPath(field, l.Path)
		if err != nil {
			return nil, err
		}
		if err := oneOf(field, l.Mode, LockModes); err != nil {
			return nil, err
		}
		l = LockPath{Path: name, Mode: cmp.Or(l.Mode, LockExclusive)}
		i := slices.IndexFunc(clean, func(c LockPath) bool { return c.Path == name })
		switch {
		case i < 0:
			clean = append(clean, l)
		case clean[i].Mode != l.Mode:
			return nil, Errorf(CodeConflict, field, "%s occurs twice, shared and exclusive", name)
		}
	}
	slices.SortFunc(clean, func(a, b LockPath) int { return cmp.Compare(a.Path, b.Path) })
	return clean, nil
}

// cleanLockPath returns a path in the form for comparisons: relative to the workspace, without
// dots. "./" is the whole workspace.
func cleanLockPath(field, given string) (string, error) {
	switch {
	case given == "":
		return "", Errorf(CodeInvalid, field, "is an empty path")
	case len(given) > LockPathBytesMax:
		return "", Errorf(CodeInvalid, field, "is %d bytes long, at most %d are allowed", len(given), LockPathBytesMax)
	case strings.HasPrefix(given, "/"):
		return "", Errorf(CodeInvalid, field, "%q is absolute; paths are relative to the workspace", given)
	}
	if i := strings.IndexFunc(given, func(r rune) bool { return r < ' ' || r == 0x7f || r == utf8.RuneError }); i >= 0 {
		return "", Errorf(CodeInvalid, field, "has a control character, or no UTF-8, at byte %d", i)
	}
	name := path.Clean(given)
	switch {
	case name == "..", strings.HasPrefix(name, "../"):
		return "", Errorf(CodeInvalid, field, "%q leads out of the workspace", given)
	case name == ".":
		return "./", nil
	case strings.HasSuffix(given, "/"), strings.HasSuffix(given, "/."):
		return name + "/", nil
	}
	return name, nil
}

// overlaps reports whether two paths, as CleanLocks returns them, have a file in common.
func (l LockPath) overlaps(o LockPath) bool { return covers(l.Path, o.Path) || covers(o.Path, l.Path) }

// Excludes reports whether two locks exclude each other.
func (l LockPath) Excludes(o LockPath) bool {
	return (l.Mode != LockShared || o.Mode != LockShared) && l.overlaps(o)
}

// Includes reports whether a lock covers another one.
func (l LockPath) Includes(o LockPath) bool {
	return covers(l.Path, o.Path) && (l.Mode != LockShared || o.Mode == LockShared)
}

func covers(dir, name string) bool {
	return dir == name || dir == "./" || strings.HasSuffix(dir, "/") && (strings.HasPrefix(name, dir) || name == dir[:len(dir)-1])
}

// checkWorkspace checks the workspace fields of a package, and cleans the paths.
func checkWorkspace(p *Package) *Error {
	if err := checkName("workspace", p.Workspace); err != nil {
		return err
	}
	if p.Locks == nil {
		return nil
	}
	switch {
	case p.Workspace == "" && p.Context.WorkflowID == "":
		return Errorf(CodeMissing, "workspace", "is missing: locks are those of a workflow")
	case p.Type == Broadcast && p.Returned == nil && p.GroupSize() > 0:
		return Errorf(CodeConflict, "locks", "a group has none: its members would wait for each other")
	}
	if _, err := CleanLocks("locks.paths", p.Locks.Paths); err != nil {
		return err.(*Error)
	}
	return optionalBetween("locks.wait_ms", p.Locks.WaitMS, 0, LockWaitMaxMS)
}

// CheckLockWait checks how long a request during the work waits for its locks, and returns that
// time.
func CheckLockWait(field string, ms int64) (time.Duration, error) {
	if err := between(field, ms, 0, LockWaitMaxMS); err != nil {
		return 0, err
	}
	return time.Duration(ms) * time.Millisecond, nil
}

// lockSummary returns the part of a package's declared locks that the core keeps.
func (p *Package) lockSummary() *Locks {
	if p.Locks == nil {
		return nil
	}
	clean, err := CleanLocks("locks.paths", p.Locks.Paths)
	if err != nil { // impossible in a checked package
		return nil
	}
	return &Locks{Paths: clean, WaitMS: p.Locks.WaitMS}
}

// CheckVariables checks values that are about to be set.
func CheckVariables(values map[string]json.RawMessage) error {
	if len(values) == 0 {
		return Errorf(CodeMissing, "variables", "none is named")
	}
	for name, value := range values {
		if err := CheckID("variables", name); err != nil {
			return err
		}
		switch {
		case len(value) > VariableBytesMax:
			return Errorf(CodeTooLarge, "variables."+name, "%s; larger values are artifacts", OverSize(len(value), VariableBytesMax))
		case !json.Valid(value):
			return Errorf(CodeMalformed, "variables."+name, "is no JSON")
		}
	}
	return nil
}

// InScope reports whether an agent with these patterns may write a variable. No pattern allows all
// names; a pattern is a name, or a prefix of names followed by *.
func InScope(scopes []string, name string) bool {
	return len(scopes) == 0 || matchesAny(scopes, name)
}

// Lists reports whether an agent may join through a gateway.
func (w *Workspace) Lists(agent string) bool { return matchesAny(w.Limits.Agents, agent) }

// Draw returns the place of a handoff.
func (w *Workspace) Draw(ticket string) (Draw, bool) {
	i := slices.IndexFunc(w.Draws, func(d Draw) bool { return d.Ticket == ticket })
	if i < 0 {
		return Draw{}, false
	}
	return w.Draws[i], true
}

// LocksOf returns the locks that a handoff has.
func (w *Workspace) LocksOf(ticket string) (locks []Lock) {
	for _, l := range w.Locks {
		if l.Ticket == ticket {
			locks = append(locks, l)
		}
	}
	return locks
}

// WaitOf returns the pending request of a handoff, or nil.
func (w *Workspace) WaitOf(ticket string) *LockWait {
	i := slices.IndexFunc(w.Waiting, func(l LockWait) bool { return l.Ticket == ticket })
	if i < 0 {
		return nil
	}
	return &w.Waiting[i]
}

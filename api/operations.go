package api

import (
	"time"

	"github.com/agenthandoff/handoff/protocol"
)

// Limits that every gateway keeps to.
const (
	// WaitMax bounds how long one request of a gateway waits. A client that waits longer
	// asks again.
	WaitMax = 20 * time.Second
	// actBytesMax bounds requests that hold a ticket and a few words.
	actBytesMax = 64 << 10
)

// Repeat says what happens when an operation is called twice.
type Repeat string

const (
	// Reads changes nothing.
	Reads Repeat = "reads"
	// ByKey has no second effect if the package has a key.
	ByKey Repeat = "by key"
	// ByNumber has no second effect if the child has a number.
	ByNumber Repeat = "by number"
	// Once has an effect at most once: a repeated report finds its lease lost, and a repeated
	// claim takes another handoff.
	Once Repeat = "once"
	// Harmless has no second effect: the caller gets the same state again, or a refusal.
	Harmless Repeat = "harmless"
)

// Operation describes one method of an interface of this package. Gateways, help and
// documentation range over all of them.
type Operation struct {
	Name      string // of the method
	Interface string // that has the method
	// Roles are those of which the caller needs one.
	Roles  Roles
	Repeat Repeat
	// RequestBytesMax bounds the request on its way through a gateway.
	RequestBytesMax int
	// WaitMax is how long a call may wait at a gateway; 0 is not at all.
	WaitMax time.Duration
	Doc     string
}

// Operations lists all operations.
var Operations = []Operation{
	{"Submit", "Source", RoleSubmitter, ByKey, protocol.PackageBytesMax, 0, "hand a package to an agent, a capability or a group"},
	{"Status", "Source", RoleReader, Reads, actBytesMax, 0, "read the state of a handoff"},
	{"Wait", "Source", RoleReader, Reads, actBytesMax, WaitMax, "wait until a handoff is closed, ended, accepted or asks"},
	{"Result", "Source", RoleReader, Reads, actBytesMax, 0, "read the result of a handoff"},
	{"LastOfChain", "Source", RoleReader, Reads, actBytesMax, 0, "read the state of the handoff that a chain has come to"},
	{"WaitChain", "Source", RoleReader, Reads, actBytesMax, WaitMax, "wait for the end of a chain, or until its last handoff is accepted or asks"},
	{"ChainResult", "Source", RoleReader, Reads, actBytesMax, 0, "read the result of the handoff that a chain has come to"},
	{"Return", "Source", RoleReader, Reads, actBytesMax, 0, "read the end of a closed handoff as its source gets it"},
	{"Context", "Source", RoleReader, Reads, actBytesMax, 0, "read the whole context of a handoff, also where it went by reference"},
	{"Cancel", "Source", RoleSubmitter | RoleOperator, Harmless, actBytesMax, 0, "ask for the end of a handoff"},
	{"Approve", "Approver", RoleSubmitter | RoleOperator, Harmless, actBytesMax, 0, "let the agent have a handoff that waits for an approval"},
	{"Deny", "Approver", RoleSubmitter | RoleOperator, Harmless, actBytesMax, 0, "end a handoff that waits for an approval"},
	{"Approvals", "Approver", RoleSubmitter | RoleOperator, Reads, actBytesMax, 0, "list the handoffs that wait for the caller's approval"},
	{"Answer", "Source", RoleSubmitter | RoleOperator, Harmless, protocol.PackageBytesMax, 0, "give a handoff what it asks for, or deny it"},

	{"Claim", "Holder", RoleWorker, Once, actBytesMax, WaitMax, "claim the most urgent offer of an agent"},
	{"Acknowledge", "Holder", RoleWorker, Once, actBytesMax, 0, "accept an offer, refuse it, or say what it needs"},
	{"Heartbeat", "Holder", RoleWorker, Harmless, actBytesMax, 0, "keep a lease and learn what has changed"},
	{"Progress", "Holder", RoleWorker, Harmless, actBytesMax, 0, "record how far the work is"},
	{"Decide", "Decider", RoleWorker, Harmless, actBytesMax, 0, "record a decision made during the work"},
	{"Spend", "Holder", RoleWorker, Harmless, actBytesMax, 0, "record what the attempt has used so far"},
	{"Complete", "Holder", RoleWorker, Once, protocol.ResultBytesMax, 0, "close a handoff with a result"},
	{"Fail", "Holder", RoleWorker, Once, actBytesMax, 0, "end an attempt without a result"},
	{"Release", "Holder", RoleWorker, Once, actBytesMax, 0, "release a handoff to its queue, uncharged"},
	{"Escalate", "Holder", RoleWorker, Once, actBytesMax, 0, "pass a handoff to the authority above its agent"},
	{"RollBackHeld", "Holder", RoleWorker, Once, protocol.ResultBytesMax, 0, "roll a held handoff back to its source, undone"},
	{"HandOff", "Holder", RoleWorker, ByNumber, protocol.PackageBytesMax, 0, "hand part of the work to another agent"},
	{"Await", "Holder", RoleWorker, Once, actBytesMax, 0, "release a handoff until what it has handed off has closed"},

	{"Package", "Reader", RoleReader, Reads, actBytesMax, 0, "read what was handed off"},
	{"History", "Reader", RoleReader, Reads, actBytesMax, 0, "read all changes of a handoff, oldest first"},
	{"Members", "Reader", RoleReader, Reads, actBytesMax, 0, "read the ends of a group's members"},
	{"LateResults", "Reader", RoleReader, Reads, actBytesMax, 0, "read the results that came after a lease was lost"},

	{"List", "Reader", RoleReader, Reads, actBytesMax, 0, "list handoffs, a page at a time"},
	{"Count", "Reader", RoleReader, Reads, actBytesMax, 0, "count handoffs"},
	{"Figures", "Reader", RoleReader, Reads, actBytesMax, 0, "sum up handoffs: rates, durations, refusals"},
	{"Series", "Reader", RoleReader, Reads, actBytesMax, 0, "count handoffs over time"},
	{"Position", "Reader", RoleReader, Reads, actBytesMax, 0, "read up to where lists and counts are right"},
	{"Find", "Reader", RoleReader, Reads, actBytesMax, 0, "find the ticket that begins with a prefix"},
	{"Family", "Reader", RoleReader, Reads, actBytesMax, 0, "list the handoffs that belong together with one"},
	{"Why", "Reader", RoleReader, Reads, actBytesMax, 0, "explain what a handoff waits for, and what happens next"},

	{"Agents", "Directory", RoleReader, Reads, actBytesMax, 0, "list all agents with their workers and queues"},
	{"Agent", "Directory", RoleReader, Reads, actBytesMax, 0, "read one agent with its workers and its queue"},
	{"Profile", "Directory", RoleReader, Reads, actBytesMax, 0, "read what is registered of an agent"},
	{"Holders", "Directory", RoleOperator, Reads, actBytesMax, 0, "list the workers of an agent"},
	{"FindAgents", "Finder", RoleReader, Reads, actBytesMax, 0, "find the agents for a task by its words"},
	{"RecommendAgents", "Finder", RoleReader, Reads, actBytesMax, 0, "rank the agents that one may hand off to, by words and success"},
	{"Queues", "Directory", RoleOperator, Reads, actBytesMax, 0, "list the lanes that have offers"},
	{"PutAgent", "Directory", RoleAdmin, Harmless, actBytesMax, 0, "register an agent or replace its profile"},
	{"PauseAgent", "Directory", RoleOperator, Harmless, actBytesMax, 0, "keep an agent from taking handoffs"},
	{"ResumeAgent", "Directory", RoleOperator, Harmless, actBytesMax, 0, "let a paused agent take handoffs again"},
	{"RemoveAgent", "Directory", RoleAdmin, Harmless, actBytesMax, 0, "forget an agent"},
	{"Breakers", "Breakers", RoleReader, Reads, actBytesMax, 0, "list the breakers of all agents that have one"},
	{"ResetBreaker", "Breakers", RoleOperator, Harmless, actBytesMax, 0, "close the breaker of an agent and forget its failures"},
	{"Fleet", "Directory", RoleReader, Reads, actBytesMax, 0, "read the settings that hold for all agents"},
	{"PutFleet", "Directory", RoleAdmin, Harmless, actBytesMax, 0, "replace the settings that hold for all agents"},

	{"OpenWorkspace", "Workspaces", RoleOperator, Harmless, actBytesMax, 0, "open a workflow's workspace, or change its limits"},
	{"CloseWorkspace", "Workspaces", RoleOperator, Harmless, actBytesMax, 0, "let no handoff join a workflow any more"},
	{"Workspace", "Workspaces", RoleOperator, Reads, actBytesMax, 0, "read what the handoffs of a workflow share"},
	{"Workspaces", "Workspaces", RoleOperator, Reads, actBytesMax, 0, "list the workspaces"},
	{"ResolveVariables", "Workspaces", RoleOperator, Harmless, actBytesMax, 0, "settle variables of a workflow"},

	{"Lock", "Sharer", RoleWorker, Harmless, actBytesMax, WaitMax, "lock paths of a workflow from within the work"},
	{"Unlock", "Sharer", RoleWorker, Harmless, actBytesMax, 0, "give locks back"},
	{"SetVariables", "Sharer", RoleWorker, Once, protocol.WorkspaceBytesMax, 0, "set variables of a workflow"},
	{"HeldWorkspace", "Sharer", RoleWorker, Reads, actBytesMax, 0, "read what the handoffs of its workflow share"},

	{"Reroute", "Operator", RoleOperator, Harmless, actBytesMax, 0, "offer an open handoff to another agent"},
	{"RollBack", "Operator", RoleOperator, Harmless, actBytesMax, 0, "roll a handoff back to its source, undone"},
	{"Redrive", "Operator", RoleOperator, Harmless, actBytesMax, 0, "submit a handoff that closed without success again"},
	{"Take", "Operator", RoleOperator, Once, actBytesMax, 0, "put an open handoff into an agent's hands"},
	{"Raise", "Operator", RoleOperator, Once, actBytesMax, 0, "add to the limits of an open handoff"},
	{"Dismiss", "Operator", RoleOperator, Harmless, actBytesMax, 0, "take a closed handoff out of an inbox"},
	{"Inbox", "Operator", RoleOperator, Reads, actBytesMax, 0, "list the handoffs that wait for an agent or a person"},
	{"DeadLetters", "Operator", RoleOperator, Reads, actBytesMax, 0, "list the handoffs that closed without success"},
	{"Attention", "Operator", RoleOperator, Reads, actBytesMax, 0, "list the open handoffs that need a person"},
}

// rolesOf finds the roles of an operation.
var rolesOf = func() map[string]Roles {
	roles := make(map[string]Roles, len(Operations))
	for _, op := range Operations {
		roles[op.Name] = op.Roles
	}
	return roles
}()

package cli

const submitHelp = `Submit hands a package to an agent, or to whichever agent has a capability, and
prints the ticket, alone (with --wait the result). status, wait, result, why and history
take the ticket. --reason is required: the agent, the history and the audit have to know why
this agent gets the work.

  sequential   (default) the work is the target's from then on
  delegation   the source waits for it, up to --return-timeout; the end comes back
               into the source's queue, as a handoff that it takes in
  broadcast    several --to get the same package, each as a handoff of its own
  escalation   up the chain of authority: without --to, to whom the source
               escalates to; --rationale is the reason

Exit codes: 0 submitted (with --wait: and ended with success), 4 submitted and
still open when --wait ended, 5 ended without success, 9 refused.`

const submitExamples = `  handoff submit --to reviewer --reason "code is ready" --task "review main.go"
  handoff submit --capability translate --reason r --task "to French" --var text="good day" --wait
  handoff submit --for "run the unit tests" --reason "the code is ready"
  handoff submit -f package.json --priority high --wait=30s -o json
  handoff submit --type delegation --return-timeout 10m --to tester --reason r --task "run the tests"
  T=$(handoff submit --key nightly-2026-01-31 -f package.json) && handoff wait "$T"`

// submitTopics are the pages of "handoff help submit TOPIC". Each has a group of flags.
var submitTopics = []helpTopic{
	{"work", "The work", "file from to capability for reason task task-id task-type requirement criterion type trigger priority key parent", "the task, its agent, its source", `
The package is built from flags, read from a file (-f), or both: then flags that are
given replace the fields of the file. "handoff schema package" describes the file. The
source (--from) is $HANDOFF_AGENT if that is set, else human. Any name works. If no
agent has it, submit warns you: questions and returns for that name go to a person.`},
	{"context", "Its context", "conversation workflow intent request var artifact relevant-file context-file history-file transfer max-messages max-context-tokens summarizer assist", "the facts for the agent, and how much of a conversation", `How much of a conversation (--history-file) is passed on depends on --transfer, the
limits, or else the type: all for an escalation, a summary for a delegation, else the
relevant messages. The first request, the last five messages, and tool calls with their
results always stay. The package names the parts left out, and the author of the
summary: the source, a summarizer (or --assist), or extracts.

Before anything is written, secrets (keys, tokens, passwords) are taken out of the
package; stderr has their number. $HANDOFF_REDACT names a file with more patterns, one
regular expression a line; --redact adds one.`},
	{"target", "Conditions for its result and its target", "output-schema requires strict-capabilities bids bid-window bid-most bid-least bid-weights rationale risk approve-by approval-question approval-timeout on-approval-timeout", "schemas, capabilities, bids, approval", `
--for matches your words against the agents' profiles (handoff agents find) and picks an
agent if there is a clear match, or asks --assist; else submit exits with 9 (no_match),
names the nearest, and writes nothing.

With --bids agents with the --capability are asked first for bids (--bid-window). The best
bid gets the work, and the next best if that agent refuses. Only agents that make bids are
asked (agents put --bids, work --bids).`},
	{"time", "Time and routing", "at in deadline work-timeout on-open wait-for-agent route-by ranked on-timeout progress-timeout late-result next", "starts, deadlines, absent and busy agents, next agents", `
With --at or --in the handoff is stored and has its ticket at once, and is offered at that
instant: until then it can be approved, rerouted and cancelled. Its deadline and timeouts
count from the start. "handoff why" has the instant.`},
	{"return", "What comes back", "return return-timeout return-of on-return-timeout await", "the end as work of the source; waiting inside a worker", `
With --await block in a program that "handoff work" runs, the result of the program waits:
the package is handed off when the program ends with exit code 0, and the program runs
again when all of these children have ended, with returns on its input. The ticket is
printed at once. The type is delegation by default, with an hour to return. If the program
fails, refuses or asks a question, nothing is handed off. See "handoff work --help".`},
	{"groups", "Groups", "group aggregate count-from cancel-rest", "several agents, and when the group has succeeded", `
A broadcast, or a --group of different packages, has one ticket, which is polled like
any other. It succeeds when all members have (--aggregate: any, or more than half of
them), and closes as soon as that is certain; --cancel-rest ends the others then. A
group file is a list of members: each has a target, and may have a reason, priority,
task, variables and artifacts of its own, laid over those of the package:

  [{"target": {"agent": "coder"}, "task": {"description": "fix it"}},
   {"target": {"capability": "review"}, "variables": {"strict": true}}]

  handoff submit --to alice --to bob --to carol --aggregate majority --reason r --task "approve the plan" --wait`},
	{"limits", "Limits", "complexity max-handoffs max-depth max-agents max-tokens max-cost max-time share on-exhausted", "handoffs, agents, tokens, cost and time, of all that follows", ""},
	{"sharing", "What it shares", "workspace lock lock-shared lock-wait", "workflows, variables and locks", ""},
	{"policy", "Policy", "policy", "attempts, timeouts and the like of this handoff", ""},
	{"worker", "From the work on another handoff", "under", "inside a worker, and for agents that poll", `
Inside a worker started by "handoff work" the new handoff is a child of the current one:
its parent is $HANDOFF_TICKET, it is submitted under $HANDOFF_LEASE (which is enough alone),
and it begins at once. A program that runs again and submits the same package gets the
same ticket; so does the second of two equal ones. --no-lease, --from, --parent or --key
submit it apart from the current handoff. A child inherits unset fields from its parent
(conversation, workflow, user, intent, correlation and trace ids, priority, deadline). Its
deadline is never later than the parent's. Its trace is $TRACEPARENT and $TRACESTATE,
unless the package names one.

An agent that polls hands off with --under LEASE: the child is recorded with the handoff of
the LEASE, so that a crash neither loses nor duplicates it, and "handoff await" releases
the handoff until the child ends. --key names the child among its siblings; without a key
an equal package is the same child, which the next attempt finds again. A claim lists the
children (CHILD). A sequential child begins when the handoff of the LEASE completes: until
then it is awaiting_source, and it is dropped if that attempt ends without a result.`},
	{"options", "How to submit", "dry-run no-lease gateway wait for-person or-run", "waiting, gateways, and a command for when nothing works", `
--wait waits for the end of the chain, which goes on as long as results name a goto. It
prints the result, as "handoff result" does, and the ticket goes to stderr; with -o json
it prints one document: the status of the handoff that ended (the last of the chain),
"submitted" (the ticket of the first) and "result". With --return-of handoff it waits
for the handoff itself.

With --key, submitting again is the same handoff: the ticket is made from source
and key, and the same package with the same key changes nothing.

An error in a package names the field, and nothing is written (exit code 9). If the
connection breaks in the middle, the message names the ticket, and "handoff status
TICKET" shows whether it was submitted.

With --or-run the command after -- does the work if the package is refused, no agent is
found, or no engine is reached: it gets the package on its standard input, and its exit
code is that of submit. It does not run if the package is invalid, or if it is unknown
whether it was submitted.

  handoff submit --to painter --reason r --task "the kitchen" --or-run -- ./paint.sh

` + gatewayHelp + ` The source is that agent; the parent must be one of its handoffs.`},
}

// submitDaily are the flags in the help of submit itself.
var submitDaily = []string{"file", "to", "capability", "for", "reason", "task", "type", "priority", "var", "artifact", "deadline", "key", "wait", "dry-run"}

package cli

const submitHelp = `Submit hands a package to an agent, or to whichever agent has a capability, and
prints the ticket, alone (with --wait the result). By the ticket anybody follows the handoff: status,
wait, result, history.

  sequential   (default) the work is the target's from then on
  delegation   the source waits for it, up to --return-timeout; the end comes back
               into the source's queue, as a handoff that it takes in
  broadcast    several --to get the same package, each as a handoff of its own
  escalation   up the chain of authority: without --to, to whom the source
               escalates to; --rationale says why

With --for the target is found by words, as "handoff agents find" does, where one is
certain, or chosen by --assist; else submit exits with 9 (no_match), names the nearest,
and writes nothing.

With --bids agents with the --capability are asked first what they would do it for
(--bid-window). The best bid gets it, the next one where that agent refuses. Only agents
whose profile says so make bids (agents put --bids, work --bids).

A broadcast, or a --group of different packages, has one ticket, which is polled like
any other. It succeeds when all members have (--aggregate: any, or more than half of
them), and closes as soon as that is certain; --cancel-rest ends the others then. A
group file is a list of members: each has a target, and may have a reason, priority,
task, variables and artifacts of its own, laid over what the package says:

  [{"target": {"agent": "coder"}, "task": {"description": "fix it"}},
   {"target": {"capability": "review"}, "variables": {"strict": true}}]

The package is built from flags, read from a file (-f), or both: then flags that
are given replace what the file says. "handoff schema package" describes the file.
The source (--from) is $HANDOFF_AGENT where that is set, else human. Any other name
will do, but stderr says so where no agent has it: what is asked of it, and what it gets
back, waits for people then. Inside a worker started by "handoff work" the new handoff follows from the one being
worked on: its parent is $HANDOFF_TICKET, and it is handed off under the lease of that
($HANDOFF_LEASE). A program that is run again, and submits the same, gets the tickets that it
had: an equal package is found, and so is the second of two equal ones. The lease alone is enough: it
names agent and ticket, too. It begins at once. With --no-lease,
--from, --parent or --key it is submitted beside it. What has a parent takes over from it what
it does not say itself: conversation, workflow, user, intent, correlation and trace
ids, priority, and the deadline, than which its own is never later. The trace that it is in is that of
$TRACEPARENT and $TRACESTATE, unless the package names one.

An agent that polls hands off with --under: the new handoff is recorded with the one it
holds, so that a crash neither loses nor doubles it, and "handoff await" lets go until
its end is there. With --key that names it among what the handoff has handed off; without one
the package itself does, and the next attempt that submits the same goes on with it. A
claim lists those that exist (CHILD). A sequential one begins when the handoff of the LEASE completes: until
then it is awaiting_source, and it is dropped where that attempt ends without a result.

With --await block in a program that "handoff work" runs, the result of the program waits:
the package is handed off as the program ends with exit code 0, and the program is run
again when all that it has left so have ended, with returns on its input. The ticket is
printed at once. A delegation is the default then, and waits for an hour. Of a program
that fails, refuses or asks nothing is handed off. See "handoff work --help".

--wait waits for the end: that of the chain, where a result hands the work on by goto. It
prints the result, as "handoff result" does, and the ticket goes to stderr; with -o json
it prints one document: the status of the handoff that ended (the last of the chain),
"submitted" (the ticket of the first) and "result". With --return-of handoff it waits
for the handoff itself.

Of a conversation (--history-file) as much goes on as --transfer and the bounds say, or
the type: all for an escalation, a summary for a delegation, else what is relevant. The
first request and the last five messages stay, and calls of tools with their results. The
package says what was left out, and who wrote the summary: its source, a summarizer (or
what assists: see "handoff agents find --help"), or extracts.

With --key, submitting again is the same handoff: the ticket is made from source
and key, and the same package with the same key changes nothing.

A file of lines (-f packages.jsonl, or --lines) has a package on each line, and is
submitted many at a time; flags replace fields of every line. First all lines are
checked: what is wrong is said by line, and nothing is written then (--keep-going
submits the others, and begins at once). The output has one line for each, in their
order: a ticket, or - where the engine refused it (an agent that is not there, say).
With a key in every line the file may safely be submitted again, after an interruption
or with lines added: what is there already is not doubled.

Before anything is written, what looks like a secret (a key, a token, a password) is
taken out of the package; stderr says how many. $HANDOFF_REDACT names a file with
more patterns, one regular expression a line; --redact adds one.

With --or-run the command behind -- does the work where the package is refused, no agent
is found for it, or no engine is reached: it gets the package on its standard input, and
its exit code is that of submit. It does not run where the package itself is not in order,
nor where it is not known whether it was submitted.

What is wrong with a package is said by field, and nothing is written (exit code
9). Should the connection break in the middle, the message names the ticket, and
"handoff status TICKET" tells whether it was submitted.

` + gatewayHelp + ` The source is that agent; the parent must be one of its handoffs.

Exit codes: 0 submitted (with --wait: and ended with success), 4 submitted and
still open when --wait ended, 5 ended without success, 9 refused.`

const submitExamples = `  handoff submit --to reviewer --reason "code is ready" --task "review main.go"
  handoff submit --capability translate --reason r --task "to French" --var text="good day" --wait
  handoff submit --for "run the unit tests" --reason "the code is ready"
  handoff submit -f package.json --priority high --wait=30s -o json
  handoff submit --type delegation --return-timeout 10m --to tester --reason r --task "run the tests"
  handoff submit --to alice --to bob --to carol --aggregate majority --reason r --task "approve the plan" --wait
  handoff submit --type escalation --from worker --rationale "the budget is exceeded" --reason r --task "may we go on?"
  handoff submit -f packages.jsonl > tickets
  handoff submit --to painter --reason r --task "the kitchen" --or-run -- ./paint.sh
  T=$(handoff submit --key nightly-2026-01-31 -f package.json) && handoff wait "$T"`

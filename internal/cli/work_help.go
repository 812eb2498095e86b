package cli

const workHelp = `Work serves an agent. For each handoff it runs CMD: the package comes on standard
input as JSON, what CMD writes to standard output is the result, standard error goes to
the log here. Start more of it, on any machine, to work on more at once.

How the output is read says --result. With auto, a JSON object that is all of it, or its
last block (in a fenced block, say), is the result if it has fields of one (handoff schema
result); what stands around it goes to the log, with a warning. Any other JSON is the body, and
anything else its text. What tries to be a result and is none (it does not parse, "comand", a
goto that is no name) is a failed attempt, result_malformed: it is not repeated, unless the
policy has on_malformed=retry, and "handoff result" prints what was written.

The exit code of CMD says what came of it:

  0   complete
  65  failed for good              75  failed, retry later
  69  rejected: not for this one   77  conditional: something is needed first
  126, 127  CMD cannot run: the worker drains and ends, no attempt is charged
  anything else  failed, and worth another attempt

The package has, where there are any: context.previous (the result of the agent that has
handed on to this one), supplements (answers to what was asked, whose variables are in
context.variables, too), trail (who refused, asked and failed before),
returns (the ends of what was handed off and waited for) and shared (what its workflow shares).

In the environment of CMD are HANDOFF_TICKET, HANDOFF_LEASE, HANDOFF_AGENT, HANDOFF_ATTEMPT,
HANDOFF_FENCE, HANDOFF_LIMIT (when the first clock takes it away), HANDOFF_LIMIT_CLOCK
(work, return or deadline), HANDOFF_PROGRESS_DEADLINE, HANDOFF_DEADLINE, NATS_URL, TRACEPARENT and TRACESTATE (its span, as W3C Trace Context has it); in
HANDOFF_PROGRESS_FILE the name of a file of which every line that is written there is
a report of progress ("40 parsing"); in HANDOFF_USAGE_FILE that of one whose last line
is what it has used so far, {"tokens": 1200, "cost_micros": 30000} or the usage of a
model's answer; in HANDOFF_BRIEF_FILE that of the handoff as instructions for a model ("handoff
brief"), which --input brief has on the input too; and in HANDOFF_ACK_FILE that of a file in which it may say more than an
exit code can, as a line or as JSON (handoff schema ack):

  rejected: why           conditional: what is needed
  escalated why           passed up to whom the agent escalates to
  answered text           an authority's answer to an escalation
  returned why            back to the source, with what was printed as the partial result

A result with a command hands off, in the manner of LangGraph's: {"command": {"goto":
"tester", "update": {…}}}. A list of names is a broadcast, a list of {"agent",
"update"} a group of different packages, END the end of the chain. It is recorded
with the result, so that a crash neither loses nor doubles it. "handoff submit" inside
CMD submits a handoff of its own at once; source and parent are filled in.

A result may wait: {"command": {"await": [{"agent": "coder", "task": "its index"}, …],
"for": "all"}} delegates, lets go of the slot, and has CMD run again when all of them
(any, a majority) have ended, with returns on its input. "handoff submit --await block"
inside CMD adds to what the result waits for; it needs no output. What is printed beside
the command goes to the log then.

A handoff that is cancelled, is to go back to its source, or whose lease is lost has
CMD's whole process group terminated. Then --cleanup is run, with the same input and
environment and HANDOFF_CLEANUP_REASON: cancelled, returned or lease_lost.

An agent that is not there yet is registered, with --capability and
--description. A profile that is there stays as it is, unless --update adds them.

A worker beats to show that it is there: every --beat, each answered within
--beat-timeout; after --misses missed ones its --lease is over, and its handoffs go to
others. Whichever of them are not given follow from those that are.

` + gatewayHelp + `
CMD has HANDOFF_GATEWAY from it, so that "handoff submit", status, wait and result inside go
through the gateway as well. Where no gateway serves at the start, work ends with exit code 6.

` + waitHelp + `

` + metricsHelp + `

Ctrl-C drains: nothing new is taken, what runs has --drain to finish, the rest is
released without charge. What has not ended 5 s later is killed with its process group.
The command ends 25 s after --drain at the latest, with 130. A second Ctrl-C ends CMD and
releases what it has at once, with 130 too; a third waits for nothing. A closed terminal
(SIGHUP) drains as Ctrl-C does.`

package cli

import (
	"github.com/spf13/pflag"

	"github.com/agenthandoff/handoff/protocol"
)

// packageFlags are the flags that make a package.
type packageFlags struct {
	fieldFlags[protocol.Package]

	file, contextFile, schemaFile, groupFile string
	transfer                                 transferFlags

	from, capability, parent, deadline, await string
	words                                     string // that a target is found by
	to, variables, artifacts                  []string
	requires, policies, next                  []string
}

func (f *packageFlags) declare(fs *pflag.FlagSet) {
	f.fs = fs
	fs.SortFlags = false // the flags that each submission needs come first
	type pkg = protocol.Package
	fs.StringVarP(&f.file, "file", "f", "", "read the package from a JSON `FILE`, or stdin with -; flags replace its fields")
	fs.StringVar(&f.from, "from", "", "the `AGENT` that hands off (default $HANDOFF_AGENT, else human)")
	fs.StringArrayVar(&f.to, "to", nil, "the `AGENT` to hand to; repeat it to hand the same to several (a broadcast)")
	fs.StringVar(&f.capability, "capability", "", "hand to the best agent with this `CAPABILITY`, instead of --to")
	fs.StringVar(&f.words, "for", "", "hand to the agent whose profile has these `WORDS`, instead of --to, where one is certain (see handoff agents find); without --task they are the task, too")
	f.text("reason", "`WHY` this handoff", func(p *pkg) *string { return &p.Reason })
	f.text("task", "`WHAT` is to be done, in words", func(p *pkg) *string { return &p.Task.Description })
	f.text("task-id", "`ID` of the task, your own", func(p *pkg) *string { return &p.Task.ID })
	f.text("task-type", "`KIND` of task, your own word", func(p *pkg) *string { return &p.Task.Type })
	f.texts("requirement", "`WORDS` that the work must meet (repeatable)", func(p *pkg) *[]string { return &p.Task.Requirements })
	f.texts("criterion", "`WORDS` by which the result is judged (repeatable)", func(p *pkg) *[]string { return &p.Expectations.SuccessCriteria })
	f.text("type", "`TYPE`: sequential (default), delegation, broadcast or escalation (needs no --to)", func(p *pkg) *string { return (*string)(&p.Type) })
	f.text("trigger", "`WHAT` set it off: task_completion, capability_mismatch, escalation, timeout, explicit_request", func(p *pkg) *string { return (*string)(&p.Trigger) })
	f.text("priority", "`PRIORITY`: critical, high, normal (default) or low", func(p *pkg) *string { return (*string)(&p.Priority) })
	f.text("key", "idempotency `KEY`: the same source, key and package are the same handoff", func(p *pkg) *string { return &p.Key })
	fs.StringVar(&f.parent, "parent", "", "`TICKET` this one follows from (default $HANDOFF_TICKET, inside a worker)")
	f.text("conversation", "`ID` of the conversation it belongs to", func(p *pkg) *string { p.Context.ConversationID = new(string); return p.Context.ConversationID })
	f.text("workflow", "`ID` of the workflow it belongs to", func(p *pkg) *string { return &p.Context.WorkflowID })
	f.text("intent", "`WHAT` the user wants in the end", func(p *pkg) *string { p.Context.UserIntent = new(string); return p.Context.UserIntent })
	f.text("request", "the user's original `REQUEST`, verbatim", func(p *pkg) *string { return &p.Context.OriginalRequest })
	fs.StringArrayVar(&f.variables, "var", nil, "context variable `NAME=VALUE`; the value is JSON if it parses, else text (repeatable)")
	fs.StringArrayVar(&f.artifacts, "artifact", nil, "artifact `NAME=PATH`, or a URI as the path (repeatable)")
	relevant := fs.StringArray("relevant-file", nil, "`PATH` of a file to read first (repeatable)")
	f.onGiven("relevant-file", func(p *pkg) {
		for _, path := range *relevant {
			p.Context.RelevantFiles = append(p.Context.RelevantFiles, protocol.FileReference{Path: path})
		}
	})
	fs.StringVar(&f.contextFile, "context-file", "", "read the context from a JSON `FILE`, or stdin with -")
	f.declareTransfer(fs)
	fs.StringVar(&f.schemaFile, "output-schema", "", "`FILE` with the JSON Schema that the result's body must meet")
	fs.StringArrayVar(&f.requires, "requires", nil, "capability the target must have, `NAME[:0.8]` (repeatable)")
	strict := fs.Bool("strict-capabilities", false, "refuse an agent that has only a part of what --requires asks for (default: accept it with a warning)")
	f.onGiven("strict-capabilities", func(p *pkg) { p.Policy.StrictCapabilities = strict })
	f.declareBids()
	f.text("rationale", "`WHY` it was decided so; required for an escalation", func(p *pkg) *string { return &p.Audit.DecisionRationale })
	f.text("risk", "`RISK`: low, medium or high", func(p *pkg) *string { return (*string)(&p.Audit.RiskLevel) })
	f.declareApproval()
	fs.StringVar(&f.deadline, "deadline", "", "over everything: `WHEN`, as a duration from now (2h, 3d) or an instant (2026-01-31T17:00:00Z)")
	f.millis("work-timeout", "from acceptance to completion (default: the agent's, else 1h)", func(p *pkg) *int64 { return &p.Expectations.TimeoutMS })
	f.declareRouting()
	f.text("on-timeout", "`WHAT` follows the work timeout: "+policyWords("on_timeout"), func(p *pkg) *string {
		p.Policy.OnTimeout = new(protocol.OnTimeout)
		return (*string)(p.Policy.OnTimeout)
	})
	f.millis("progress-timeout", "from one sign of progress to the next (default: none is asked for)", func(p *pkg) *int64 { p.Policy.ProgressTimeoutMS = new(int64); return p.Policy.ProgressTimeoutMS })
	f.text("late-result", "`WHAT` becomes of a late result when no attempt is left: "+policyWords("late_result"), func(p *pkg) *string {
		p.Policy.LateResult = new(protocol.LateResult)
		return (*string)(p.Policy.LateResult)
	})
	fs.StringArrayVar(&f.next, "next", nil, "`RULE` for what follows where the result has no command, the first that holds: 'quality_score < 80 -> docs-researcher', then '-> code-implementer'; 'reviewer: ...' is for the results of that agent (repeatable)")
	f.declareReturn(fs)
	f.declareLimits(fs)
	f.declareWorkspace(fs)
	fs.StringArrayVar(&f.policies, "policy", nil, "policy `NAME=VALUE`, for example max_attempts=1 (repeatable; see handoff schema package)")
}

// declareReturn declares the flags of what comes back, and for a group of its members and of when
// it has succeeded.
func (f *packageFlags) declareReturn(fs *pflag.FlagSet) {
	type pkg = protocol.Package
	own := func(p *pkg) *protocol.ReturnProtocol { return orNew(&p.Return) }
	expected := func(p *pkg) *protocol.ReturnProtocol { own(p).Expected = true; return p.Return }
	expects := fs.Bool("return", false, "deliver the end to the source, as work that it takes in (a delegation and an escalation always do)")
	f.millis("return-timeout", "a result is expected back within this; required for a delegation", func(p *pkg) *int64 { return &expected(p).TimeoutMS })
	f.text("return-of", "`WHOSE` end is the return: chain, with all that is handed on by goto (default), or handoff", func(p *pkg) *string { return (*string)(&own(p).Of) })
	f.text("on-return-timeout", "`WHAT` follows the return timeout: "+policyWords("on_return_timeout"), func(p *pkg) *string { return (*string)(&expected(p).OnTimeout) })
	fs.StringVar(&f.await, "await", "", "`WHAT` a parent that hands this off does meanwhile: continue (default), or block until it has ended. In a program of \"handoff work\": the program is run again then")
	f.onGiven("await", func(p *pkg) { expected(p).Wait = f.await })
	fs.StringVar(&f.groupFile, "group", "", "hand to a group: a JSON list of members, each with its target and what is different for it, from a `FILE`, or stdin with -")
	f.text("aggregate", "a group has succeeded when `WHO` of it has: all (default), any or majority", func(p *pkg) *string { return (*string)(&own(p).Aggregation) })
	from := fs.StringArray("count-from", nil, "the `AGENT` of a group whose end counts (repeatable; default: all of them)")
	f.onGiven("count-from", func(p *pkg) { own(p).From = *from })
	rest := fs.Bool("cancel-rest", false, "cancel the other members once the group's outcome is certain")
	f.onGiven("cancel-rest", func(p *pkg) { own(p).CancelRest = *rest })
	f.onGiven("return", func(p *pkg) { own(p).Expected = *expects }) // the last word, for --return=false
}

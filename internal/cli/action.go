package cli

import (
	"cmp"
	"strings"

	"github.com/agenthandoff/handoff/internal/explain"
)

// commandLine is the command that takes an action.
func commandLine(action explain.Action) string {
	arg := action.Args
	switch ticket := arg["ticket"]; action.Op {
	case explain.OpAnswer:
		line := "handoff answer " + ticket + " --question " + arg["question"]
		for _, name := range strings.Fields(arg["set"]) {
			line += " --set " + name + "=…"
		}
		for _, flag := range []string{"permit", "text", "deny", "let-others", "reason"} {
			if value, given := arg[flag]; given {
				line += " --" + flag
				if value == "" {
					line += " …"
				}
			}
		}
		return line
	case explain.OpDeny:
		return "handoff deny " + ticket + " --reason …"
	case explain.OpClaim:
		return "handoff claim --agent " + arg["agent"]
	case explain.OpConnect:
		return "--nats URL, $NATS_URL or --context NAME"
	case explain.OpDead:
		return "handoff dead show " + ticket
	case explain.OpDev:
		if fsync := arg["fsync"]; fsync != "" {
			return "handoff dev --fsync " + fsync
		}
	case explain.OpInbox:
		return "handoff inbox --agent " + arg["agent"]
	case explain.OpLate:
		return "handoff result " + ticket + " --late"
	case explain.OpMend:
		return "handoff doctor --mend " + cmp.Or(ticket, "TICKET")
	case explain.OpRaise:
		return raiseCommand(ticket, arg["limit"])
	case explain.OpRedrive:
		if _, again := arg["again"]; again {
			ticket += " --again"
		}
		return "handoff dead redrive " + ticket
	case explain.OpRegister:
		return "handoff agents put " + cmp.Or(arg["agent"], "AGENT")
	case explain.OpRepair:
		return "handoff doctor --repair"
	case explain.OpReroute:
		return "handoff reroute " + ticket + " --to AGENT"
	case explain.OpBreaker, explain.OpResetBreaker, explain.OpResume:
		return "handoff agents " + strings.ReplaceAll(action.Op, "_", " ") + " " + arg["agent"]
	case explain.OpReturn:
		return "handoff result " + cmp.Or(ticket, "TICKET") + " --return"
	case explain.OpRollback:
		return "handoff rollback " + ticket + " --reason …"
	case explain.OpSubmitUnder:
		return "handoff submit --under LEASE"
	case explain.OpTopology:
		return "handoff topology ensure"
	case explain.OpWork:
		line := "handoff work --agent " + cmp.Or(arg["agent"], "NAME")
		if capability := arg["capability"]; capability != "" {
			line += " --capability " + capability
		}
		return line + " -- CMD"
	case explain.OpApprove, explain.OpDismiss, explain.OpHistory, explain.OpResult, explain.OpTake, explain.OpTree, explain.OpWhy:
		return "handoff " + action.Op + " " + ticket
	}
	return "handoff " + action.Op
}

// manyCommands is from how many commands on one ticket a phrase names their verbs alone.
const manyCommands = 3

// phrase writes a phrase with its actions as commands.
func phrase(p explain.Phrase) string {
	if len(p.Actions) == 0 {
		return p.Words
	}
	commands, verbs := make([]string, len(p.Actions)), make([]string, len(p.Actions))
	for i, action := range p.Actions {
		commands[i], verbs[i] = commandLine(action), action.Op
	}
	last := len(commands) - 1
	switch first := p.Actions[0]; {
	case first.Op == explain.OpReturn:
		command := commands[0] + " prints it"
		if p.Words == "" {
			return command
		}
		return p.Words + "; " + command
	case first.Op == explain.OpSupervise:
		return p.Words + " (" + commands[0] + "; handoff dev has one)"
	case len(commands) >= manyCommands:
		return p.Words + ": handoff " + strings.Join(verbs[:last], ", ") + " or " + verbs[last] + " " + first.Args["ticket"]
	}
	return p.Words + ": " + strings.Join(commands, ", or ")
}

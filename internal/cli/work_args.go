package cli

import (
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/agenthandoff/handoff/protocol"
	"github.com/agenthandoff/handoff/worker"
	"github.com/agenthandoff/handoff/worker/output"
)

// args checks the arguments of work, and what its flags say together.
func (flags *workFlags) args(_ *cobra.Command, args []string) error {
	if flags.agent == "" {
		return usagef("work needs --agent AGENT")
	}
	if flags.agent == protocol.Human && !flags.person {
		return usagef("--agent human: what waits for a person is not for a program (handoff inbox lists it); --yes-i-am-a-person says that a person reads each")
	}
	if !slices.Contains(output.Modes, output.Mode(flags.result)) {
		return usagef("--result %s: an output is read as %s", flags.result, strings.Join(asWords(output.Modes), ", "))
	}
	if !slices.Contains(worker.Inputs, worker.Input(flags.input)) {
		return usagef("--input %s: the input of a program is one of %s", flags.input, strings.Join(asWords(worker.Inputs), ", "))
	}
	if flags.enableHandoffs && flags.handoffs != "" && flags.handoffMode() != protocol.HandoffsOn {
		return usagef("--enable-handoffs is --handoffs on, and --handoffs %s is given", flags.handoffs)
	}
	if len(args) == 0 {
		return usagef("work needs a program to run: handoff work --agent %s -- CMD", flags.agent)
	}
	return nil
}

// handoffMode is what the agent may hand off, as the flags say; empty is that they do not.
func (flags *workFlags) handoffMode() protocol.HandoffMode {
	if flags.enableHandoffs && flags.handoffs == "" {
		return protocol.HandoffsOn
	}
	return protocol.HandoffMode(flags.handoffs)
}

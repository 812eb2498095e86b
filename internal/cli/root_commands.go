package cli

import (
	"strings"

	"github.com/spf13/cobra"
)

// commands adds every command, in the order of the help.
func commands(a *app, root *cobra.Command) {
	for _, group := range []struct {
		title    string
		commands []*cobra.Command
	}{
		{"Hand off work and follow it:", []*cobra.Command{newSubmit(a), newStatus(a), newWait(a), newResult(a), newHistory(a),
			newWhy(a), newShow(a), newBrief(a), newContext(a), newTree(a), newBudget(a), newTail(a), newCancel(a)}},
		{"Step in, as a person or an agent in charge:", []*cobra.Command{newInbox(a), newApprove(a), newDeny(a), newAnswer(a), newTake(a), newReroute(a),
			newRollback(a), newDismiss(a), newDead(a)}},
		{"Ask about many of them:", []*cobra.Command{newList(a), newConversation(a), newStats(a), newAudit(a)}},
		{"Share within a workflow:", []*cobra.Command{newWorkflow(a), newVars(a), newLock(a), newUnlock(a)}},
		{"Be an agent:", []*cobra.Command{newWork(a), newExample(a), newAgents(a)}},
		{"Be an agent that polls:", []*cobra.Command{newClaim(a), newAck(a), newBid(a), newHeartbeat(a), newProgress(a), newSpend(a), newDecide(a), newComplete(a),
			newFail(a), newRelease(a), newEscalate(a), newAwait(a)}},
		{"Run the engine:", []*cobra.Command{newDev(a), newTopology(a), newFleet(a), newBackup(a), newRestore(a), newSupervise(a),
			newIndex(a), newGateway(a), newTop(a), newDoctor(a), newBench(a)}},
		{"Write packages and results:", []*cobra.Command{newSchema(a), newValidate(a)}},
	} {
		root.AddGroup(&cobra.Group{ID: group.title, Title: group.title})
		for _, cmd := range group.commands {
			cmd.GroupID = group.title
			root.AddCommand(cmd)
		}
	}
	root.AddCommand(newDemo(a), newDemoTether(a), newDemoAgent(a), newBenchWorker(a), newVersion(a), newExitCodes())
}

// refuseUnknown is the RunE of a command that only has subcommands.
func refuseUnknown(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return cmd.Help()
	}
	// The engine's own tools say "stream ls"; one word wrong is usually a slip.
	cmd.SuggestionsMinimumDistance = 2
	if near := cmd.SuggestionsFor(args[0]); len(near) > 0 {
		return usagef("%s has no command %q; did you mean %s?", cmd.CommandPath(), args[0], strings.Join(near, ", "))
	}
	return usagef("%s has no command %q; see %s --help", cmd.CommandPath(), args[0], cmd.CommandPath())
}

// takes checks the number of arguments; names are for the message.
func takes(names ...string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		switch {
		case len(args) < len(names):
			return usagef("%s needs %s; see %s --help", cmd.CommandPath(), names[len(args)], cmd.CommandPath())
		case len(args) > len(names):
			return usagef("%s does not take %q; see %s --help", cmd.CommandPath(), args[len(names)], cmd.CommandPath())
		}
		return nil
	}
}

package cli

import (
	"context"
	"encoding/json"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/agenthandoff/handoff/protocol"
)

func newContext(a *app) *cobra.Command {
	var (
		section string
		gateway bool
	)
	cmd := &cobra.Command{
		Use:   "context TICKET",
		Short: "Print the whole context of a handoff, also where it went by reference",
		Long: `Context prints the context of a handoff as JSON. If the package was submitted by reference
(handoff submit --transfer reference), handoff fetches the stored context: the whole
conversation and every other field as submitted, byte for byte. An agent needs the right
to read the package. If the URL of the package belongs to another system, handoff prints
the context in the package and does not fetch the URL.

Exit codes: 0 printed; 3 no such ticket, no such section, or the stored context has
expired.`,
		Example: `  handoff context 5f0c… | jq .variables
  handoff context 5f0c… --section conversation_history > talk.json
  handoff context "$HANDOFF_TICKET" --gateway`,
		Args: takes("a TICKET"),
		RunE: func(cmd *cobra.Command, args []string) error {
			through, err := a.throughGateway(cmd, gateway)
			if err != nil {
				return err
			}
			return a.onSource(cmd.Context(), through, args[0], func(ctx context.Context, s *source, ticket string) error {
				whole, err := s.Context(ctx, ticket)
				if err != nil {
					return err
				}
				return a.printContext(whole, section)
			})
		},
	}
	cmd.Flags().StringVar(&section, "section", "", "print this `FIELD` of it alone, such as variables or conversation_history")
	gatewayFlag(cmd, &gateway)
	return cmd
}

// printContext prints a context, or one section of it, as the bytes that it has.
func (a *app) printContext(whole protocol.Context, section string) error {
	body, err := protocol.Marshal(whole)
	if err != nil {
		return err
	}
	if section != "" {
		var sections map[string]json.RawMessage
		if err := json.Unmarshal(body, &sections); err != nil {
			return err
		}
		found, there := sections[section]
		if !there {
			return protocol.Errorf(protocol.CodeNotFound, "section", "%s is not there; the context has %s", protocol.CutText(section, 64),
				strings.Join(slices.Sorted(maps.Keys(sections)), ", "))
		}
		body = found
	}
	return a.body(append(body, '\n'))
}

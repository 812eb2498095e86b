package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/agenthandoff/handoff/api"
	"github.com/agenthandoff/handoff/protocol"
)

// changesMax is how often a change of the fleet's settings is tried that others overtake.
const changesMax = 10

func newAgentsDefaults(a *app) *cobra.Command {
	var policies []string
	cmd := &cobra.Command{
		Use:   "defaults",
		Short: "See and change what holds for all agents",
		Long: `Defaults prints the policies that hold for all agents, and sets those that are given
with --policy. An empty value unsets one. The profile of an agent (handoff agents put
--policy) wins over them, and a package (handoff submit --policy) over both.

A change holds for what is offered from then on; processes that submit all the time
have it within 10 seconds. What waits in a queue already keeps its policy.`,
		Example: `  handoff agents defaults
  handoff agents defaults --policy on_no_taker=queue
  handoff agents defaults --policy on_no_taker=`,
		Args: takes(),
		RunE: a.onSession(func(ctx context.Context, s *api.Session, _ []string) error {
			if len(policies) == 0 {
				fleet, err := s.Fleet(ctx)
				return printed(a, fleet, err, a.defaults)
			}
			fleet, err := changeFleet(ctx, s, func(f *protocol.Fleet) error { return applyPolicies(&f.Policy, policies) })
			return printed(a, fleet, err, a.defaults)
		}),
	}
	cmd.Flags().StringArrayVar(&policies, "policy", nil, "policy `NAME=VALUE` for all agents, for example on_no_taker=queue (repeatable)")
	return cmd
}

// changeFleet changes the settings of the fleet, again where another change came first.
func changeFleet(ctx context.Context, s api.Directory, change func(*protocol.Fleet) error) (api.Fleet, error) {
	for try := 1; ; try++ {
		fleet, err := s.Fleet(ctx)
		if err == nil {
			err = change(&fleet.Fleet)
		}
		if err != nil {
			return fleet, err
		}
		changed, err := s.PutFleet(ctx, fleet)
		if try == changesMax || !hasCode(protocol.CodeConflict)(err) {
			return changed, err
		}
	}
}

// defaults prints each policy, and whether the fleet sets it.
func (a *app) defaults(fleet api.Fleet) error {
	text, err := json.Marshal(fleet.Policy)
	if err != nil {
		return err
	}
	var set map[string]json.RawMessage
	if err := json.Unmarshal(text, &set); err != nil {
		return err
	}
	rows := [][]string{{"POLICY", "VALUE", "SET"}}
	for _, f := range protocol.PolicyFields {
		value, by := fmt.Sprint(f.Default), ""
		if own, is := set[f.Name]; is {
			value, by = strings.Trim(string(own), `"`), "for all agents"
		}
		rows = append(rows, []string{f.Name, value, by})
	}
	return a.table(rows)
}

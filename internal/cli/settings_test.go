package cli

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/agenthandoff/handoff/internal/explain"
	"github.com/agenthandoff/handoff/protocol"
)

const settingsPage = "../../docs/reference/settings.md"

var writeSettings = flag.Bool("write-settings", false, "write docs/reference/settings.md anew")

// settingWordsOf has a sentence for each setting whose field has none in the table of policies.
var settingWordsOf = map[string]string{
	"policy.on_timeout":             "The action at the work timeout.",
	"policy.backoff_base_ms":        "The delay before the second attempt; each further one is twice as long.",
	"policy.backoff_cap_ms":         "The longest delay between attempts.",
	"policy.max_reroutes":           "How often a handoff goes to another agent.",
	"policy.on_no_taker":            "The action if no agent can take it: to a person, wait, back to the source, or close.",
	"policy.max_escalations":        "How many authorities are asked, one above the other.",
	"policy.on_return_timeout":      "The action at the return timeout.",
	"policy.max_attempts":           "Attempts at one agent, the first included.",
	"policy.work_timeout_ms":        "From the acceptance to the result; `max_execution` of a profile goes before it.",
	"policy.ack_timeout_ms":         "From the claim to the acknowledgement; and after this an agent without a worker is absent.",
	"policy.condition_timeout_ms":   "How long a question waits for its answer.",
	"policy.max_conditions":         "How many questions an agent may ask.",
	"policy.cancel_grace_ms":        "From the request to stop until the handoff is taken away.",
	"policy.reminder_percent":       "Of the time for the work; then the worker is reminded.",
	"policy.backoff_spread_percent": "Of the delay, at random, more or less.",
	"policy.late_result":            "The use of a result whose worker had lost its lease.",
	"policy.strict_capabilities":    "Refuse an agent that has only a part of the required capabilities.",
	"approvals":                     "Rules that ask for an approval ([how](../how-to/approvals.md)).",
	"limits.max_handoffs":           "Handoffs below one that follows from none ([limits](../how-to/limits.md)).",
	"limits.max_depth":              "Levels of handoffs below it.",
	"limits.max_agents":             "Agents that have a part in it.",
	"limits.max_tokens":             "Tokens that it and all below it use.",
	"limits.max_cost_micros":        "Cost of the same, in millionths of the currency.",
	"limits.max_time_ms":            "Time to its end.",
	"limits.share_percent":          "Part of the rest that a child gets if it asks for nothing.",
	"limits.on_exhausted":           "The action at a spent budget: return, or ask (a person).",
	"limits_by":                     "Limits by key, for all agents ([how](../how-to/limits-by-key.md)).",
	"classes":                       "Other limits for the classes simple, medium and complex.",
	"complexity":                    "Rules that give a submission its class.",
	"loops.edge_repeats":            "How often one agent hands the same work to the same other one.",
	"handoffs":                      "The hand-offs that agents may make: on, off or simple ([edges](../how-to/edges.md)).",
	"breaker.threshold":             "Different handoffs that fail before a breaker opens ([breakers](../how-to/breakers.md)).",
	"breaker.window_ms":             "The window of the failure rate.",
	"breaker.share_percent":         "The failure rate that opens it.",
	"breaker.open_ms":               "How long it is open; doubled each time.",
	"breaker.open_max_ms":           "The longest time that it is open.",
	"breaker.probes":                "Handoffs that try the agent again at once.",
	"routing.by":                    "How an agent is chosen: fit, load or success.",
	"experiments":                   "Variants of a way, which are compared ([experiments](../how-to/experiments.md)).",
}

// TestSettings holds that the page has each setting of `handoff fleet show`, and its default.
func TestSettings(t *testing.T) {
	page := strings.ReplaceAll(`# Settings

Every setting that holds for all agents, with its default. 'handoff fleet show' prints them with the
values of your fleet, 'handoff fleet set NAME=VALUE' changes one, 'handoff fleet unset NAME' takes
it back. The profile of an agent ('handoff agents put NAME --policy max_attempts=5') goes before the
fleet, and a package ('handoff submit --policy max_attempts=5') before both.

Names that end in '_ms' are milliseconds. Flags have their defaults in the help of their command.
A test makes this page: 'go test ./internal/cli -run TestSettings -write-settings'.

| setting | default | values | meaning |
|---|---|---|---|
`, "'", "`")
	fields := map[string]protocol.PolicyField{}
	for _, f := range protocol.PolicyFields {
		fields["policy."+f.Name] = f
	}
	for _, path := range settingPaths() {
		f, policy := fields[path]
		values := ""
		switch {
		case !policy:
		case f.Words != nil:
			values = strings.Join(f.Words, ", ")
		case f.Default == false:
			values = "true, false"
		default:
			values = fmt.Sprintf("%d to %d", f.Min, f.Max)
		}
		words, known := settingWordsOf[path]
		if !known {
			words = f.Doc
		}
		if words == "" {
			t.Errorf("%s has no sentence in settingWordsOf", path)
		}
		value := readable(path, settingDefaults[path])
		if path == "breaker.threshold" {
			value = "none; " + value + " if another setting of the breaker is set"
		}
		page += fmt.Sprintf("| `%s` | %s | %s | %s |\n", path, value, values, words)
	}
	if *writeSettings {
		if err := os.WriteFile(settingsPage, []byte(page), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := os.ReadFile(settingsPage); err != nil || !bytes.Equal(got, []byte(page)) {
		t.Errorf("%s is not up to date (%v): go test ./internal/cli -run TestSettings -write-settings", settingsPage, err)
	}
	for path := range settingWordsOf {
		if settingDefaults[path] == "" {
			t.Errorf("settingWordsOf has a sentence for %s, which is no setting", path)
		}
	}
}

// readable adds a duration to milliseconds.
func readable(path, value string) string {
	n, err := strconv.ParseInt(value, 10, 64)
	if err != nil || n == 0 || !strings.HasSuffix(path, "_ms") {
		return value
	}
	return fmt.Sprintf("%s (%s)", value, explain.Duration(time.Duration(n)*time.Millisecond))
}

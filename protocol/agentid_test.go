package protocol_test

import (
	"strings"
	"testing"

	"github.com/agenthandoff/handoff/protocol"
)

func TestAgentID(t *testing.T) {
	for name, want := range map[string]string{
		"Verification_Expert": "Verification_Expert", // an id stays what it is
		"web surfer":          "web-surfer-ea53fa80e778",
	} {
		if got := protocol.AgentID(name); got != want {
			t.Errorf("AgentID(%q) = %q, want %q: ids must never change", name, got, want)
		}
	}
	names := []string{"", "human", "Human", "handoff", "a b", "a-b", "a.b", "a*b", "a>b", "a  b", " a b", "a b ", "A B", "-", "*", ">", ".",
		"Orchestrator (-> WebSurfer)", "Orchestrator (thought)", "机器人", "机器人二", "Zoë", "Zoe\u0308", "\x00", "\xff\xfe", "x\ny",
		strings.Repeat("x", 64), strings.Repeat("x", 65), strings.Repeat("x", 200), strings.Repeat("x y", 70), strings.Repeat("-", 64)}
	names = append(names, protocol.AgentID("a b"), protocol.AgentID("")) // ids that were made are names too
	seen := map[string]string{}
	for _, name := range names {
		id := protocol.AgentID(name)
		if err := protocol.CheckID("agent", id); err != nil {
			t.Errorf("AgentID(%q): %v", name, err)
		}
		if id == protocol.Human || id == protocol.System {
			t.Errorf("AgentID(%q) is the reserved agent", name)
		}
		if other, taken := seen[id]; taken {
			t.Errorf("AgentID is %q of both %q and %q", id, name, other)
		}
		seen[id] = name
	}
}

// TestPollerID: the documentation names the name space, so that others can make the id.
func TestPollerID(t *testing.T) {
	if got := protocol.PollerID("clerk"); got != "a223dd76-b623-53c6-9017-a90b7acf5244" {
		t.Errorf("the id of clerk's polls is %s", got)
	}
	if !(protocol.Holder{ID: protocol.PollerID("clerk"), Agent: "clerk", Polling: true}).IsPoll() || (protocol.Holder{ID: protocol.PollerID("clerk"), Agent: "clerk"}).IsPoll() {
		t.Error("a poll is a polling entry of that id")
	}
}

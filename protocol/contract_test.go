package protocol_test

import (
	"encoding/json"
	"slices"
	"testing"

	"github.com/agenthandoff/handoff/protocol"
)

func TestContractExpects(t *testing.T) {
	for schema, want := range map[string][]string{
		``: nil, `null`: nil, `true`: nil, `{"required": "x"}`: nil, `{"required": []}`: nil,
		`{"required": ["summary", "variables"], "properties": {"variables": {"required": ["branch", "sha"]}}}`: {"summary", "variables.branch", "variables.sha"},
	} {
		c := &protocol.Contract{ContextSchema: json.RawMessage(schema)}
		if got := c.Expects(); !slices.Equal(got, want) {
			t.Errorf("%s expects %v, want %v", schema, got, want)
		}
	}
	if got := (*protocol.Contract)(nil).Expects(); got != nil {
		t.Errorf("no contract expects %v", got)
	}
}

// TestCutFor: a conversation over the bound of an agent is cut in a mode that its contract has.
func TestCutFor(t *testing.T) {
	talk := ownTalks(t)
	long := talk[len(talk)-1]
	all := protocol.ConversationTokens(long.History)
	modes := func(list ...protocol.TransferMode) *protocol.Contract { return &protocol.Contract{Modes: list} }
	for name, c := range map[string]struct {
		agent protocol.Profile
		given protocol.HistoryTransfer
		url   string
		mode  protocol.TransferMode
		most  int // of tokens; 0 is that nothing changes
	}{
		"no bound":                  {agent: protocol.Profile{}},
		"within the bound":          {agent: protocol.Profile{MaxContextTokens: all}},
		"over it":                   {agent: protocol.Profile{MaxContextTokens: 200}, mode: protocol.TransferRelevantOnly, most: 200},
		"in the mode of the source": {agent: protocol.Profile{MaxContextTokens: 200}, given: protocol.HistoryTransfer{Mode: protocol.TransferFull}, mode: protocol.TransferFull, most: 200},
		"within a smaller bound":    {agent: protocol.Profile{MaxContextTokens: 200}, given: protocol.HistoryTransfer{MaxTokens: 100}, mode: protocol.TransferRelevantOnly, most: 100},
		"in a mode of the contract": {agent: protocol.Profile{MaxContextTokens: 200, Contract: modes(protocol.TransferReference, protocol.TransferFull)}, mode: protocol.TransferFull, most: 200},
		"by reference":              {agent: protocol.Profile{MaxContextTokens: 200, Contract: modes(protocol.TransferReference)}, url: "context://x", mode: protocol.TransferReference, most: 1},
	} {
		pkg := protocol.Package{Task: protocol.Task{Description: long.Task}, Context: protocol.Context{ConversationHistory: long.History, HistoryTransfer: c.given, ContextURL: c.url}}
		changed, h := pkg.CutFor(&c.agent), pkg.Context.HistoryTransfer
		n := protocol.ConversationTokens(pkg.Context.ConversationHistory)
		if changed != (c.most > 0) || h.Mode != c.mode && changed || changed && (n > c.most || h.Omitted == 0) {
			t.Errorf("%s: changed %t, %d tokens, %+v", name, changed, n, h)
		}
	}
}

// TestAdaptMode: a conversation that goes on in the usual mode takes one of the contract.
func TestAdaptMode(t *testing.T) {
	history := []protocol.Message{protocol.Message(`{"role":"user","content":"please"}`)}
	for want, contract := range map[protocol.TransferMode]*protocol.Contract{
		protocol.TransferRelevantOnly: nil,
		protocol.TransferSummary:      {Modes: []protocol.TransferMode{protocol.TransferReference, protocol.TransferSummary}},
	} {
		pkg := protocol.Package{Context: protocol.Context{ConversationHistory: history, HistoryTransfer: protocol.HistoryTransfer{Mode: protocol.TransferRelevantOnly}}}
		pkg.AdaptMode(contract)
		if got := pkg.Context.HistoryTransfer.Mode; got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
}

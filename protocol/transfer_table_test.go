package protocol_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/agenthandoff/handoff/protocol"
)

// TestTransferTable: the page has what each mode keeps of the recorded conversations.
func TestTransferTable(t *testing.T) {
	all := transcripts(t)
	table := "| | messages, median | p95 | tokens, median | p95 |\n|---|---:|---:|---:|---:|\n"
	for _, row := range []struct {
		name string
		how  protocol.HistoryTransfer
	}{
		{"`full`, `relevant_only`", protocol.HistoryTransfer{Mode: "full"}},
		{"`full`, 6 messages", protocol.HistoryTransfer{Mode: "full", MaxMessages: 6}},
		{"`relevant_only`, 6 messages", protocol.HistoryTransfer{Mode: "relevant_only", MaxMessages: 6}},
		{"`full`, 1,500 tokens", protocol.HistoryTransfer{Mode: "full", MaxTokens: 1500}},
		{"`relevant_only`, 1,500 tokens", protocol.HistoryTransfer{Mode: "relevant_only", MaxTokens: 1500}},
		{"`summary`, by extracts", protocol.HistoryTransfer{Mode: "summary"}},
		{"`reference`, its key points", protocol.HistoryTransfer{Mode: "reference"}},
	} {
		var messages, tokens []int
		for _, one := range all {
			pkg := protocol.Package{Task: protocol.Task{Description: one.Task}, Context: protocol.Context{ConversationHistory: one.History, HistoryTransfer: row.how}}
			pkg.CutConversation()
			c := pkg.Context
			n := protocol.ConversationTokens(c.ConversationHistory) + protocol.Tokens(c.Summary) + protocol.Tokens(strings.Join(c.KeyPoints, "\n"))
			messages, tokens = append(messages, len(c.ConversationHistory)), append(tokens, n)
		}
		slices.Sort(messages)
		slices.Sort(tokens)
		at := func(of []int, percent int) int { return of[(len(of)-1)*percent/100] }
		table += fmt.Sprintf("| %s | %d | %d | %d | %d |\n", row.name, at(messages, 50), at(messages, 95), at(tokens, 50), at(tokens, 95))
	}
	page, err := os.ReadFile(filepath.Join("..", "docs", "how-to", "context.md"))
	if err != nil {
		t.Fatal(err)
	}
	if len(all) == 126 && !strings.Contains(string(page), table) {
		t.Errorf("docs/how-to/context.md does not have this:\n%s", table)
	}
}

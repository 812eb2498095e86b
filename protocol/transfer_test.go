package protocol_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/agenthandoff/handoff/protocol"
)

// talk is a conversation, with what it is about.
type talk struct {
	Name    string
	Task    string             `json:"question"`
	History []protocol.Message `json:"history"`
}

// ownTalks are conversations in the forms that the common interfaces of models have, and a long one.
func ownTalks(t testing.TB) []talk {
	all := readTalks(t, filepath.Join("testdata", "conversations"))
	long := talk{Name: "long", Task: "find the lost well"}
	for i := range 60 {
		say := func(format string, args ...any) {
			long.History = append(long.History, protocol.Message(fmt.Sprintf(format, args...)))
		}
		say(`{"role":"user","content":"question %d about well %d"}`, i, i%7)
		say(`{"role":"assistant","content":null,"tool_calls":[{"id":"a%d"},{"id":"b%d"}]}`, i, i)
		say(`{"role":"tool","tool_call_id":"b%d","content":%q}`, i, strings.Repeat("data ", i))
		say(`{"role":"tool","tool_call_id":"a%d","content":"lost"}`, i)
	}
	return append(all, long)
}

// transcripts are the recorded conversations beside the project, or those of HANDOFF_TRANSCRIPTS.
func transcripts(t testing.TB) []talk {
	t.Helper()
	dir := os.Getenv("HANDOFF_TRANSCRIPTS")
	if dir == "" {
		dir = filepath.Join("..", "..", "shared", "data", "transcripts")
		if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
			t.Skipf("no transcripts: HANDOFF_TRANSCRIPTS is not set and there is no folder %s", dir)
		}
	}
	return readTalks(t, dir)
}

func readTalks(t testing.TB, dir string) (all []talk) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*.json"))
	if err != nil || len(files) == 0 {
		t.Fatalf("%d conversations in %s, %v", len(files), dir, err)
	}
	for _, file := range files {
		body, err := os.ReadFile(file)
		one := talk{Name: filepath.Base(file)}
		if err == nil {
			err = json.Unmarshal(body, &one)
		}
		if err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		all = append(all, one)
	}
	return all
}

// asCalls is a transcript in which what the terminal prints is the result of a tool, which the
// message before it has called: in parts, or with ids.
func (of talk) asCalls(inParts bool) talk {
	out := talk{Name: of.Name + " with calls", Task: of.Task}
	for i, raw := range of.History {
		var m struct{ Role, Name, Content string }
		if json.Unmarshal(raw, &m) != nil || m.Name != "Computer_terminal" || i == 0 {
			out.History = append(out.History, raw)
			continue
		}
		id := fmt.Sprintf("call-%d", i)
		last := len(out.History) - 1
		var before map[string]any
		if json.Unmarshal(out.History[last], &before) != nil {
			continue
		}
		result := map[string]any{"role": "tool", "tool_call_id": id, "content": m.Content}
		if inParts {
			before["content"] = []any{map[string]any{"type": "text", "text": before["content"]}, map[string]any{"type": "tool_use", "id": id}}
			result = map[string]any{"role": "user", "content": []any{map[string]any{"type": "tool_result", "tool_use_id": id, "content": m.Content}}}
		} else {
			before["tool_calls"] = []any{map[string]any{"id": id}}
		}
		call, _ := json.Marshal(before)
		answer, _ := json.Marshal(result)
		out.History[last] = call
		out.History = append(out.History, answer)
	}
	return out
}

// transfers are all that is tried of each conversation.
func transfers() (all []protocol.HistoryTransfer) {
	for _, mode := range protocol.TransferModes {
		for _, messages := range []int{0, 2, 7} {
			for _, tokens := range []int{0, 60, 1000} {
				one := protocol.HistoryTransfer{Mode: mode, MaxMessages: messages, MaxTokens: tokens}
				all = append(all, one)
				if tokens == 0 {
					no := false
					for _, include := range []protocol.Include{{ToolResults: &no, AgentReasoning: &no}, {ToolCalls: &no}, {SystemMessages: &no, ToolCalls: &no, ToolResults: &no}} {
						one.Include = &include
						all = append(all, one)
					}
				}
			}
		}
	}
	return all
}

// TestTransferOfTranscripts: what holds of each way to cut a conversation, over all transcripts.
func TestTransferOfTranscripts(t *testing.T) {
	all := transcripts(t)
	for i, one := range all {
		one.check(t)
		one.asCalls(i%2 == 0).check(t)
	}
	t.Logf("%d conversations, as they are and with calls, each cut in %d ways", len(all), len(transfers()))
}

// TestTransfer: the same of conversations of our own.
func TestTransfer(t *testing.T) {
	for _, one := range ownTalks(t) {
		one.check(t)
	}
}

// check cuts a conversation in all ways, and checks what holds of each.
func (of talk) check(t *testing.T) {
	t.Helper()
	for _, how := range transfers() {
		pkg := protocol.Package{Task: protocol.Task{Description: of.Task}, Context: protocol.Context{ConversationHistory: slices.Clone(of.History), HistoryTransfer: how}}
		again := pkg
		again.Context.ConversationHistory = slices.Clone(of.History)
		pkg.CutConversation()
		again.CutConversation()
		if err := of.holds(how, pkg.Context); err != nil {
			t.Fatalf("%s, %+v: %v", of.Name, how, err)
		}
		if !reflect.DeepEqual(pkg, again) {
			t.Fatalf("%s, %+v: another package the second time", of.Name, how)
		}
		again.CutConversation()
		if !reflect.DeepEqual(pkg, again) {
			t.Fatalf("%s, %+v: cut again, it is another: %+v and %+v", of.Name, how, pkg.Context.HistoryTransfer, again.Context.HistoryTransfer)
		}
	}
}

func (of talk) holds(how protocol.HistoryTransfer, c protocol.Context) error {
	left, h := c.ConversationHistory, c.HistoryTransfer
	texts := 0
	for _, m := range left {
		texts += protocol.Tokens(words(m))
	}
	switch {
	case how.MaxMessages > 0 && len(left) > how.MaxMessages:
		return fmt.Errorf("%d messages are left", len(left))
	case how.MaxTokens > 0 && (texts > how.MaxTokens || h.Tokens > how.MaxTokens || protocol.Tokens(c.Summary+strings.Join(c.KeyPoints, "\n")) > how.MaxTokens):
		return fmt.Errorf("%d tokens are left, and are said to be %d; summary %q, key points %q", texts, h.Tokens, c.Summary, c.KeyPoints)
	case h.Omitted != len(of.History)-len(left):
		return fmt.Errorf("%d of %d messages are left, and %d are said to be left out", len(left), len(of.History), h.Omitted)
	case h.Mode == protocol.TransferSummary && (len(left) > 0 || h.By != protocol.SummaryByExtract):
		return fmt.Errorf("%d messages, a summary by %q", len(left), h.By)
	case h.Mode == protocol.TransferSummary && how.MaxTokens != 1 && c.Summary == "" && of.Task != "":
		return errors.New("no summary")
	case protocol.Tokens(c.Summary) > protocol.SummaryTokensMax || len(c.KeyPoints) > protocol.KeyPointsMax:
		return fmt.Errorf("a summary of %d tokens, and %d key points", protocol.Tokens(c.Summary), len(c.KeyPoints))
	}
	if how.Include == nil {
		if err := of.inOrder(left); err != nil {
			return err
		}
		if err := of.keepsWhatStays(how, left); err != nil {
			return err
		}
	}
	if i := how.Include; i != nil && (i.ToolCalls != nil || i.ToolResults != nil) {
		if calls, results := toolsOf(left); len(calls)+len(results) > 0 {
			return fmt.Errorf("calls %v and results %v are no texts", calls, results)
		}
	}
	return orphans(of.History, left)
}

// inOrder tells whether messages are some of a conversation, in its order and byte for byte.
func (of talk) inOrder(left []protocol.Message) error {
	rest := of.History
	for _, m := range left {
		i := slices.IndexFunc(rest, func(o protocol.Message) bool { return string(o) == string(m) })
		if i < 0 {
			return fmt.Errorf("%s is not where it was, or not as it was", m)
		}
		rest = rest[i+1:]
	}
	return nil
}

// keepsWhatStays: without tools and a bound of tokens, the request and the last five stay where
// there is room for them, and all there is where nothing bounds it.
func (of talk) keepsWhatStays(how protocol.HistoryTransfer, left []protocol.Message) error {
	if how.Mode == protocol.TransferSummary || how.Mode == protocol.TransferReference || how.MaxTokens > 0 {
		return nil
	}
	if how.MaxMessages == 0 && len(left) != len(of.History) {
		return fmt.Errorf("%d of %d without a bound", len(left), len(of.History))
	}
	if text := string(slices.Concat(of.History...)); strings.Contains(text, "tool") || strings.Contains(text, "function_call") || how.MaxMessages < 7 && how.MaxMessages > 0 {
		return nil
	}
	for _, m := range append(slices.Clone(of.History[max(len(of.History)-5, 0):]), of.History[0]) {
		if !slices.ContainsFunc(left, func(l protocol.Message) bool { return string(l) == string(m) }) {
			return fmt.Errorf("%s is gone", m)
		}
	}
	return nil
}

// orphans: of a call and its results none goes without the others; what was alone may be.
func orphans(all, left []protocol.Message) error {
	callsBefore, resultsBefore := toolsOf(all)
	calls, results := toolsOf(left)
	for id, n := range calls {
		if resultsBefore[id] > 0 && results[id] != n*resultsBefore[id]/max(callsBefore[id], 1) {
			return fmt.Errorf("the call %s has %d of %d results", id, results[id], resultsBefore[id])
		}
	}
	for id := range results {
		if callsBefore[id] > 0 && calls[id] == 0 {
			return fmt.Errorf("the result of %s is without its call", id)
		}
	}
	return nil
}

// toolsOf counts calls and results by their ids, wherever these stand in a message.
func toolsOf(all []protocol.Message) (calls, results map[string]int) {
	calls, results = map[string]int{}, map[string]int{}
	for _, m := range all {
		var v struct {
			ToolCalls []struct{ ID string } `json:"tool_calls"`
			ToolID    string                `json:"tool_call_id"`
			Type      string
			CallID    string          `json:"call_id"`
			Content   json.RawMessage `json:"content"`
		}
		if json.Unmarshal(m, &v) != nil {
			continue
		}
		for _, c := range v.ToolCalls {
			calls[c.ID]++
		}
		if v.ToolID != "" {
			results[v.ToolID]++
		}
		switch v.Type {
		case "function_call":
			calls[v.CallID]++
		case "function_call_output":
			results[v.CallID]++
		}
		var parts []struct {
			Type, ID string
			UseID    string `json:"tool_use_id"`
		}
		_ = json.Unmarshal(v.Content, &parts) // a text has none
		for _, p := range parts {
			switch p.Type {
			case "tool_use":
				calls[p.ID]++
			case "tool_result":
				results[p.UseID]++
			}
		}
	}
	return calls, results
}

// words is the text of a message whose content is one.
func words(m protocol.Message) string {
	var v struct{ Content string }
	_ = json.Unmarshal(m, &v) // another content has no words here
	return v.Content
}

// TestTransferOfTools: the flags of calls and results are independent. Where one kind goes on without
// the other it is texts, in each form that the interfaces of models have.
func TestTransferOfTools(t *testing.T) {
	no := false
	for name, c := range map[string]struct{ all, calls, results []string }{
		"ids": {
			[]string{`{"role":"assistant","content":null,"tool_calls":[{"id":"a","type":"function","function":{"name":"run","arguments":"{\"cmd\":\"ls\"}"}},{"id":"b","type":"function","function":{"name":"read","arguments":"{}"}}]}`,
				`{"role":"tool","tool_call_id":"a","content":"x.go"}`, `{"role":"tool","tool_call_id":"b","content":[{"type":"text","text":"one"},{"type":"text","text":"two"}]}`},
			[]string{`{"content":"called run {\"cmd\":\"ls\"}\ncalled read {}","role":"assistant"}`},
			[]string{`{"content":"result of run: x.go","role":"user"}`, `{"content":"result of read: one\ntwo","role":"user"}`},
		},
		"parts": {
			[]string{`{"role":"assistant","content":[{"type":"text","text":"I look."},{"type":"tool_use","id":"a","name":"git","input":{"args":["branch"]}}]}`,
				`{"role":"user","content":[{"type":"tool_result","tool_use_id":"a","content":[{"type":"text","text":"main"},{"type":"image","source":"s"}]},{"type":"text","text":"go on"}]}`},
			[]string{`{"content":"I look.\ncalled git {\"args\":[\"branch\"]}","role":"assistant"}`, `{"content":[{"type":"text","text":"go on"}],"role":"user"}`},
			[]string{`{"content":[{"type":"text","text":"I look."}],"role":"assistant"}`,
				`{"content":[{"text":"result of git: main","type":"text"},{"type":"image","source":"s"},{"type":"text","text":"go on"}],"role":"user"}`},
		},
		"items": {
			[]string{`{"type":"function_call","id":"f","call_id":"k","name":"search","arguments":"{\"q\":1}"}`, `{"type":"function_call_output","call_id":"k","output":"wells 3 and 7"}`},
			[]string{`{"content":"called search {\"q\":1}","role":"assistant"}`},
			[]string{`{"content":"result of search: wells 3 and 7","role":"user"}`},
		},
		"before ids": {
			[]string{`{"role":"assistant","content":null,"function_call":{"name":"search","arguments":"x"}}`, `{"role":"function","name":"search","content":"none"}`},
			[]string{`{"content":"called search x","role":"assistant"}`},
			[]string{`{"content":"result of search: none","role":"user"}`},
		},
	} {
		for _, one := range []struct {
			flags protocol.Include
			want  []string
		}{{protocol.Include{ToolResults: &no}, c.calls}, {protocol.Include{ToolCalls: &no}, c.results}} {
			pkg := protocol.Package{Context: protocol.Context{HistoryTransfer: protocol.HistoryTransfer{Mode: "full", Include: &one.flags}}}
			for _, message := range c.all {
				pkg.Context.ConversationHistory = append(pkg.Context.ConversationHistory, protocol.Message(message))
			}
			pkg.CutConversation()
			var got []string
			for _, message := range pkg.Context.ConversationHistory {
				got = append(got, string(message))
			}
			if !slices.Equal(got, one.want) || pkg.Context.HistoryTransfer.OriginalTokens == 0 {
				t.Errorf("%s:\n%s\nwant\n%s\n%+v", name, got, one.want, pkg.Context.HistoryTransfer)
			}
		}
	}
}

// TestTransferByType: where it does not say how, the type of the handoff does.
func TestTransferByType(t *testing.T) {
	for kind, mode := range map[protocol.Type]protocol.TransferMode{"": "relevant_only", protocol.Sequential: "relevant_only",
		protocol.Broadcast: "relevant_only", protocol.Delegation: "summary", protocol.Escalation: "full"} {
		pkg := protocol.Package{Type: kind, Task: protocol.Task{Description: "run the tests"}, Context: protocol.Context{ConversationHistory: ownTalks(t)[0].History}}
		pkg.CutConversation()
		if h := pkg.Context.HistoryTransfer; h.Mode != mode {
			t.Errorf("%q: %q", kind, h.Mode)
		}
	}
	none := protocol.Package{Type: protocol.Delegation}
	if none.CutConversation(); !reflect.DeepEqual(none, protocol.Package{Type: protocol.Delegation}) {
		t.Errorf("without a conversation there is nothing to say: %+v", none)
	}
}

// TestTransferByTask: under a bound, what has the words of the task stays before what is newer.
func TestTransferByTask(t *testing.T) {
	var history []protocol.Message
	for i := range 40 {
		text := fmt.Sprintf("small talk %d", i)
		if i == 12 {
			text = "the lexer has no test"
		}
		history = append(history, protocol.Message(fmt.Sprintf(`{"role":"user","content":%q}`, text)))
	}
	pkg := protocol.Package{Task: protocol.Task{Description: "Write the test", Requirements: []string{"of the lexer"}},
		Context: protocol.Context{ConversationHistory: history, HistoryTransfer: protocol.HistoryTransfer{MaxMessages: 8}}}
	pkg.CutConversation()
	want := append([]protocol.Message{history[0], history[12]}, history[34:]...)
	if !reflect.DeepEqual(pkg.Context.ConversationHistory, want) {
		t.Errorf("%s", pkg.Context.ConversationHistory)
	}
}

// TestTransferBy: the package says who wrote the summary.
func TestTransferBy(t *testing.T) {
	pkg := whole()
	pkg.Context.ConversationHistory, pkg.Context.Summary = ownTalks(t)[0].History, ""
	pkg.Context.OriginalRequest, pkg.Context.CompletedSteps = "", []json.RawMessage{[]byte(`"looked"`), []byte(`{"name":"read"}`), []byte(`[1]`)}
	pkg.Context.Decisions = []protocol.Decision{{Description: "use Go", Rationale: "it is there"}}
	pkg.Context.HistoryTransfer = protocol.HistoryTransfer{Mode: "summary"}
	first := next(t, pkg, command(`"a"`, ""))
	if c := first.Context; c.HistoryTransfer.By != protocol.SummaryByExtract || c.HistoryTransfer.Omitted != len(pkg.Context.ConversationHistory) {
		t.Errorf("%+v", c.HistoryTransfer)
	}
	for _, line := range []string{"Request: The coverage of the parser has dropped.", "Done: looked\n", "Done: read\n", "Done: [1]\n",
		"Decided: use Go (it is there)\n", "\nuser: Write a test for the lexer then."} {
		if !strings.Contains(first.Context.Summary, line) {
			t.Errorf("%q is not in %q", line, first.Context.Summary)
		}
	}
	result := command(`"b"`, "")
	if second := next(t, first, result); second.Context.HistoryTransfer.By != protocol.SummaryByExtract || second.Context.Summary != first.Context.Summary {
		t.Errorf("handed on: %+v", second.Context.HistoryTransfer)
	}
	result.Summary = "all is well"
	if second := next(t, first, result); second.Context.HistoryTransfer.By != protocol.SummaryBySource || second.Context.Summary != "all is well" {
		t.Errorf("with a summary: %+v", second.Context.HistoryTransfer)
	}
}

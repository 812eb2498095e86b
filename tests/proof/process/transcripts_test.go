//go:build proof

package process

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"
)

// transcriptsDir is where the recorded conversations lie, beside the project.
const transcriptsDir = "../../../../shared/data/transcripts"

// TestTranscripts relays recorded conversations of real multi-agent systems
// through the product. HANDOFF_TRANSCRIPTS names another folder of them.
func TestTranscripts(t *testing.T) {
	dir := os.Getenv("HANDOFF_TRANSCRIPTS")
	if dir == "" {
		dir = transcriptsDir
		if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
			t.Skipf("no transcripts: HANDOFF_TRANSCRIPTS is not set and there is no folder %s", dir)
		}
	}
	relayAll(t, readTranscripts(t, dir))
}

// TestTranscriptsOfOddSpeakers relays conversations as other folders hold them:
// names that no subject can carry, names that look alike, none at all, long
// conversations, messages over the inline limit.
func TestTranscriptsOfOddSpeakers(t *testing.T) {
	relayAll(t, oddConversations())
}

// conversation is one recorded talk.
type conversation struct {
	id       string
	messages []json.RawMessage
}

// readTranscripts reads every conversation under a folder.
func readTranscripts(t *testing.T, dir string) []conversation {
	t.Helper()
	var all []conversation
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || filepath.Ext(path) != ".json" {
			return err
		}
		body, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		var transcript struct {
			History []json.RawMessage `json:"history"`
		}
		if err := json.Unmarshal(body, &transcript); err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		all = append(all, conversation{id: fmt.Sprintf("transcript-%d", len(all)), messages: transcript.History})
		t.Logf("%s is %s", all[len(all)-1].id, filepath.Base(path))
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(all) == 0 {
		t.Fatalf("no conversation in %s", dir)
	}
	return all
}

// speaker is who said a message: its name, else its role, else empty.
func speaker(message json.RawMessage) string {
	var m struct{ Name, Role any }
	_ = json.Unmarshal(message, &m) // a message that is no object has no speaker either
	for _, who := range []any{m.Name, m.Role} {
		switch who := who.(type) {
		case nil:
		case string:
			if who != "" {
				return who
			}
		default:
			return fmt.Sprint(who)
		}
	}
	return ""
}

// runs tells where a conversation changes its speaker: the index of the first
// message of each run.
func (c conversation) runs() []int {
	var starts []int
	for i, m := range c.messages {
		if i == 0 || speaker(m) != speaker(c.messages[i-1]) {
			starts = append(starts, i)
		}
	}
	return starts
}

// runFrom is what one speaker said without a break, from a message on.
func (c conversation) runFrom(start int) []json.RawMessage {
	end := start + 1
	for end < len(c.messages) && speaker(c.messages[end]) == speaker(c.messages[start]) {
		end++
	}
	return c.messages[start:end]
}

// oddConversations is a set of everything that a folder may hold.
func oddConversations() []conversation {
	odd := []string{
		"web surfer", "Orchestrator (-> WebSurfer)", "Orchestrator (thought)", "a.b.c", "a b c", "a-b-c", "A-B-C", "a_b_c", "*", ">", "a.>", ".",
		"-", "_", "human", "Human", "user", "assistant", "", " ", "  ", "$SYS", "$JS.API.>", "机器人", "Zoë", "Zoe\u0308", "🤖", "tab\there",
		"quote\"d", "back\\slash", strings.Repeat("long name ", 20), strings.Repeat("x", 64), strings.Repeat("x", 65), strings.Repeat("ж", 100),
		"../../etc/passwd", "<script>", "handoff", "supervisor", "null", "NaN",
	}
	var all []conversation
	add := func(messages ...json.RawMessage) {
		all = append(all, conversation{id: fmt.Sprintf("odd-%d", len(all)), messages: messages})
	}
	for i, name := range odd { // each with each neighbour, and with itself alone
		next, third := odd[(i+1)%len(odd)], odd[(i+7)%len(odd)]
		add(say(name, "one"), say(next, "two"), say(next, "three"), say(name, "four"), say(third, "five"))
		add(say(name, "alone"), say(name, "and again"))
	}
	var long []json.RawMessage
	for i := range 130 {
		long = append(long, say(odd[i%3], strings.Repeat(fmt.Sprintf("message %d & <b>ünïcödé</b> \u2028 ", i), 60)))
	}
	add(long...)
	add(long[:1]...)
	var huge []json.RawMessage
	for i := range 6 {
		huge = append(huge, say(odd[i%2], strings.Repeat("0123456789abcde\n", 40<<10/16*(i+1))))
	}
	add(huge...)
	add(
		json.RawMessage(`{"content":"nobody said this"}`),
		json.RawMessage(`{"name":null,"role":"user","content":null}`),
		json.RawMessage(`{"name":"","role":"user","content":[{"type":"text","text":"parts"}],"n":12345678901234567890,"f":1.10}`),
		json.RawMessage(`{"name":7,"content":{"deep":{"er":[1,2,{"z":1,"a":2}]}}}`),
		json.RawMessage(`{"role":"assistant","tool_calls":[{"id":"1","function":{"name":"f","arguments":"{\"a\": 1}"}}]}`),
		json.RawMessage(`{"role":"tool","tool_call_id":"1","content":"password = \"hunter2hunter2\" sk-abcdefghijklmnopqrstuvwxyz123456 AKIAIOSFODNN7EXAMPLE"}`),
	)
	add( // what the protocol refuses, and recordings hold all the same
		json.RawMessage(`{"name":"nul\u0000name","content":"a\u0000b"}`),
		json.RawMessage(`{"name":"half","content":"a lone \ud800 surrogate"}`),
		json.RawMessage("{\"name\":\"bytes\",\"content\":\"not \xff UTF-8\"}"),
		json.RawMessage(`"a message that is no object"`), json.RawMessage(`null`),
		json.RawMessage(`{"name":"twice","content":1,"content":2}`),
		say("end", "the end"),
	)
	return all
}

// say makes a message, with fields that only its own system knows.
func say(name, content string) json.RawMessage {
	message := map[string]any{"name": name, "role": "assistant", "content": content, "x_score": 0.1}
	body, _ := json.Marshal(message) // strings and numbers always have a JSON form
	if !utf8.Valid(body) {
		panic("json makes valid UTF-8")
	}
	return body
}

package natsgateway

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/agenthandoff/handoff/protocol"
)

func TestSubjects(t *testing.T) {
	for subject, want := range map[string][2]string{
		Subject("coder", verbPull):                        {"coder", verbPull},
		SubjectAt("co-der_1", "d0", verbBeat):             {"co-der_1", verbBeat},
		"handoff.v1.coder.any thing":                      {"coder", "any thing"},
		"handoff.v1.coder":                                {},
		"handoff.v1.coder.in.d0.pull":                     {},
		"handoff.v1.coder.at.pull":                        {},
		"handoff.v1.coder.at.d0.pull.more":                {},
		"handoff.v1.co$der.pull":                          {},
		"handoff.v1." + strings.Repeat("a", 65) + ".pull": {},
		"handoff.v2.coder.pull":                           {},
		"handoff.query.list":                              {},
	} {
		agent, verb, ok := parseSubject(subject)
		if agent != want[0] || verb != want[1] || ok != (want[0] != "") {
			t.Errorf("%s: %q %q %v", subject, agent, verb, ok)
		}
	}
}

func TestReplies(t *testing.T) {
	for reply, may := range map[string]bool{
		"_INBOX.abc": true, "_INBOX.abc.1": true, "_R_.abc": true, "_GR_.c.s.abc": true, "_INBOX_coder.abc": true,
		"": false, "_INBOX.": false, "_R_.": false, "_INBOX": false, "_INBOX_spy.abc": false, "_INBOX_coder": false, "_INBOXx.abc": false,
		"handoff.v1.coder.pull": false, "handoff.v1.spy.pull": false, "$JS.API.INFO": false, "x._INBOX.y": false,
	} {
		if mayReply("coder", reply) != may {
			t.Errorf("%q: want %v", reply, may)
		}
	}
}

// FuzzRequest: whatever comes, the decoder of no verb panics, and what one takes
// is written and taken again the same.
func FuzzRequest(f *testing.F) {
	for _, seed := range []string{
		``, `{}`, `null`, `[]`, `{"most":1,"wait_ms":5000}`, `{"token":"x"}`,
		`{"holder":"k","lease_ms":1,"started_at":"2026-01-31T17:00:00Z"}`, `{"profile":{"id":"x","capabilities":["a",{"id":"b","proficiency":0.5}]},"replace":true}`,
		`{"ack":{"status":"accepted"}}`, "{\"host\":\"\xff\"}", `{"most":1e999}`, `{"token":"a","token":"b"}`,
		`{"ack":` + strings.Repeat("[", 200) + strings.Repeat("]", 200) + `}`,
	} {
		f.Add([]byte(seed))
	}
	decode := map[string]func([]byte) error{
		"register": fuzzed[registerRequest], "presence": fuzzed[presenceRequest], "pull": fuzzed[pullRequest], "offer": fuzzed[offerRequest],
		"acknowledge": fuzzed[acknowledgeRequest], "empty": fuzzed[empty],
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		for name, read := range decode {
			if err := read(body); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
	})
}

var errUnstable = errors.New("is written and read as something else")

func fuzzed[Request any](body []byte) error {
	var first []byte
	read := typed(func(_ *Gateway, _ context.Context, _ string, request *Request) (any, error) {
		var err error
		first, err = protocol.Marshal(request)
		return nil, err
	})
	var refused *protocol.Error
	if _, err := read(context.Background(), nil, "coder", body); errors.As(err, &refused) {
		return nil // as it should
	} else if err != nil {
		return err
	}
	again := first
	if _, err := read(context.Background(), nil, "coder", again); err != nil {
		return err
	}
	if string(first) != string(again) {
		return errUnstable
	}
	return nil
}

// What somebody needs who writes a worker against gateways alone is on the page.
func TestEveryVerbIsDocumented(t *testing.T) {
	page, err := os.ReadFile("../../../docs/reference/protocol.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, ok := strings.Cut(string(page), "\n## 10. Through a gateway\n")
	if !ok {
		t.Fatal("no section 10")
	}
	for verb := range verbs {
		if !strings.Contains(section, "\n| `"+verb+"` |") {
			t.Errorf("the verb %s has no row", verb)
		}
	}
	for _, word := range []string{verbPut, verbRead, headerRequest, headerGateway, headerBody, headerMore, headerTotal, headerOffset, name} {
		if !strings.Contains(section, "`"+word) {
			t.Errorf("%s is not on the page", word)
		}
	}
	words := strings.Join(strings.Fields(section), " ")
	for what, is := range map[string]bool{
		"512 KiB": ChunkBytesMax == 512<<10, "72 MiB": CallBytesMax == 72<<20, "(at most 20,000)": WaitMax == 20*time.Second, "(1 to 256)": offersMax == 256,
		"4,096 requests": RequestsDefault == 4096, "16,384 offers": OffersHeldDefault == 16384, "512 MiB": MemoryBytesDefault == 512<<20,
		"within 15 s": firstContactTimeout == 15*time.Second, "for a minute": chunksExpireAfter == time.Minute, "16 to 64 of": holderKeyMin == 16 && protocol.IDBytesMax == 64,
		"1,000 to 86,400,000": protocol.LeaseMinMS == 1000 && protocol.LeaseMaxMS == 86_400_000,
	} {
		if !is || !strings.Contains(words, what) {
			t.Errorf("the page does not say as it is: %s", what)
		}
	}
}

package natsgateway

import (
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/agenthandoff/handoff/api"
	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/protocol"
)

func TestSubjects(t *testing.T) {
	for subject, want := range map[string][2]string{
		Subject("coder", verbPut):                         {"coder", verbPut},
		SubjectAt("co-der_1", "d0", verbRead):             {"co-der_1", verbRead},
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
	for _, word := range append(slices.Clone(ofAgents), verbPut, verbRead, headerRequest, headerGateway, headerBody, headerMore, headerTotal, headerOffset, name) {
		if !strings.Contains(section, "`"+word) {
			t.Errorf("%s is not on the page", word)
		}
	}
	words := strings.Join(strings.Fields(section), " ")
	for what, is := range map[string]bool{
		"512 KiB": ChunkBytesMax == 512<<10, "72 MiB": CallBytesMax == 72<<20, "(at most 20,000)": WaitMax == 20*time.Second, "(1 to 256)": api.OffersMax == 256,
		"4,096 requests": RequestsDefault == 4096, "512 MiB": MemoryBytesDefault == 512<<20,
		"within 15 s": broker.AckWait == 30*time.Second, "for a minute": chunksExpireAfter == time.Minute, "16 to 64 of": protocol.IDBytesMax == 64,
		"1,000 to 86,400,000": protocol.LeaseMinMS == 1000 && protocol.LeaseMaxMS == 86_400_000,
	} {
		if !is || !strings.Contains(words, what) {
			t.Errorf("the page does not say as it is: %s", what)
		}
	}
}

package protocol_test

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/agenthandoff/handoff/protocol"
)

// TestPrevious: the next agent gets what the result says, up to its limits, and nothing of a
// result that says nothing.
func TestPrevious(t *testing.T) {
	text := func(n int) json.RawMessage { return json.RawMessage(`"` + strings.Repeat("x", n-2) + `"`) }
	artifacts := func(n int) protocol.Artifacts {
		return protocol.Artifacts{List: []protocol.Artifact{{Name: strings.Repeat("x", n)}}}
	}
	large := text(protocol.PreviousBodyBytesMax + 1)
	for name, c := range map[string]struct {
		result protocol.Result
		want   protocol.Previous
	}{
		"all": {protocol.Result{Body: text(9), Summary: "s", Artifacts: artifacts(1), Variables: free("v", "1"), Notes: "n", Usage: &protocol.Usage{Tokens: 7}},
			protocol.Previous{Body: text(9), Summary: "s", Artifacts: artifacts(1)}},
		"the largest body":      {protocol.Result{Body: text(protocol.PreviousBodyBytesMax)}, protocol.Previous{Body: text(protocol.PreviousBodyBytesMax)}},
		"a larger one":          {protocol.Result{Body: large, Summary: "s"}, protocol.Previous{BodyDigest: protocol.Digest(large), BodyBytes: int64(len(large)), Summary: "s"}},
		"the longest summary":   {protocol.Result{Summary: strings.Repeat("x", protocol.PreviousSummaryBytesMax)}, protocol.Previous{Summary: strings.Repeat("x", protocol.PreviousSummaryBytesMax)}},
		"a longer one":          {protocol.Result{Summary: strings.Repeat("x", protocol.PreviousSummaryBytesMax+1)}, protocol.Previous{Summary: strings.Repeat("x", protocol.PreviousSummaryBytesMax-3) + "…"}},
		"the largest artifacts": {protocol.Result{Artifacts: artifacts(protocol.PreviousArtifactsBytesMax)}, protocol.Previous{Artifacts: artifacts(protocol.PreviousArtifactsBytesMax)}},
		"larger ones":           {protocol.Result{Artifacts: artifacts(protocol.PreviousArtifactsBytesMax + 1)}, protocol.Previous{}},
	} {
		c.result.Command = &protocol.Command{Goto: json.RawMessage(`"a"`)}
		c.want.Agent, c.want.Ticket = "reviewer", groupTicket
		got := next(t, whole(), c.result)
		if got.Context.Previous == nil || !reflect.DeepEqual(*got.Context.Previous, c.want) {
			t.Errorf("%s: %.200s", name, list(t, got.Context.Previous))
		}
		if !reflect.DeepEqual(got.Context.Artifacts, c.result.Artifacts) {
			t.Errorf("%s: the context has not all artifacts", name)
		}
	}
	pkg := whole()
	pkg.Context.Previous = &protocol.Previous{Agent: "researcher", Ticket: protocol.NewTicket(), Body: text(9)}
	if got := next(t, pkg, command(`"a"`, "")); got.Context.Previous != nil {
		t.Errorf("a result that says nothing leaves an older one: %+v", got.Context.Previous)
	}
}

// TestPreviousOfMembers: all that one result hands on to get it.
func TestPreviousOfMembers(t *testing.T) {
	result := command(`["a",{"agent":"b","update":{"x":1}}]`, "")
	result.Body = json.RawMessage(`{"files":2}`)
	group := next(t, whole(), result)
	for n := range group.GroupSize() {
		member, err := group.MemberAt(groupTicket, n)
		if err != nil {
			t.Fatal(err)
		}
		if p := member.Package.Context.Previous; p == nil || fmt.Sprint(p.Agent, p.Ticket, string(p.Body)) != fmt.Sprint("reviewer", groupTicket, `{"files":2}`) {
			t.Errorf("member %d has %+v", n, p)
		}
	}
}

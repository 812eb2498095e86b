package protocol_test

import (
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/agenthandoff/handoff/protocol"
)

const groupTicket = "0c1e9a52-6d0c-4c0e-8c8e-3d1e5a2b7f10"

func free(pairs ...string) map[string]json.RawMessage {
	m := map[string]json.RawMessage{}
	for i := 0; i < len(pairs); i += 2 {
		m[pairs[i]] = json.RawMessage(pairs[i+1])
	}
	return m
}

// broadcast is one package to these agents.
func broadcast(agents ...string) protocol.Package {
	pkg := whole()
	pkg.Type, pkg.Target = protocol.Broadcast, protocol.Target{Agents: agents}
	return pkg
}

// grouped is a group of different packages.
func grouped(members ...protocol.Member) protocol.Package {
	pkg := whole()
	pkg.Type, pkg.Target, pkg.Members = protocol.Broadcast, protocol.Target{}, members
	return pkg
}

func to(agent string) protocol.Member { return protocol.Member{Target: protocol.Target{Agent: agent}} }

func TestGroupSummary(t *testing.T) {
	counted := func(numbers ...int) protocol.Bits { return protocol.Bits("").With(numbers...) }
	for name, c := range map[string]struct {
		pkg     protocol.Package
		returns *protocol.ReturnProtocol
		want    *protocol.Aggregate
		words   string
	}{
		"no group":     {whole(), nil, nil, "reviewer"},
		"several":      {broadcast("a", "b", "c"), nil, &protocol.Aggregate{Size: 3, Mode: protocol.AggregateAll}, "group of 3"},
		"one":          {broadcast("a"), &protocol.ReturnProtocol{}, &protocol.Aggregate{Size: 1, Mode: protocol.AggregateAll}, "group of 1"},
		"any, counted": {broadcast("a", "b", "c"), &protocol.ReturnProtocol{Aggregation: "any", From: []string{"c", "b"}, CancelRest: true}, &protocol.Aggregate{Size: 3, Mode: "any", Counted: counted(1, 2), CancelRest: true}, "group of 3"},
		"all of them":  {broadcast("a", "b"), &protocol.ReturnProtocol{From: []string{"b", "a"}}, &protocol.Aggregate{Size: 2, Mode: "all"}, "group of 2"},
		"one twice": {grouped(to("a"), to("b"), to("a"), protocol.Member{Target: protocol.Target{Capability: "go"}}),
			&protocol.ReturnProtocol{Aggregation: "majority", From: []string{"a"}}, &protocol.Aggregate{Size: 4, Mode: "majority", Counted: counted(0, 2)}, "group of 4"},
	} {
		c.pkg.Return = c.returns
		if err := c.pkg.Validate(vectorNow); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		s := c.pkg.Summarize("d")
		if !reflect.DeepEqual(s.Aggregate, c.want) || s.TargetWords() != c.words {
			t.Errorf("%s: %+v, %q", name, s.Aggregate, s.TargetWords())
		}
		if (c.want == nil) == reflect.DeepEqual(s.Target, protocol.Target{}) {
			t.Errorf("%s: target %+v", name, s.Target)
		}
	}
	up := protocol.Package{Type: protocol.Escalation, Source: "worker"}
	if got := up.Summarize("d").TargetWords(); got != "authority above worker" {
		t.Errorf("an escalation without a target goes to %q", got)
	}
	// A state stays small however many recipients there are.
	large := broadcast(ids(protocol.AgentsMax)...)
	large.Return = &protocol.ReturnProtocol{From: ids(protocol.AgentsMax)[1:]}
	if body, _ := json.Marshal(large.Summarize("d")); len(body) > 600 {
		t.Errorf("the summary of %d recipients is %d bytes", protocol.AgentsMax, len(body))
	}
}

// TestMembersShare: one package to several agents is stored once.
func TestMembersShare(t *testing.T) {
	pkg := broadcast("a", "b")
	pkg.Key, pkg.Context.Variables = "k", free("x", "1")
	timeout := int64(7)
	pkg.Policy.ReturnTimeoutMS = &timeout
	pkg.Return = &protocol.ReturnProtocol{Expected: true, Aggregation: "any", OnTimeout: protocol.OnTimeoutFail}
	body, _ := protocol.EncodePackage(pkg)
	for n, agent := range []string{"a", "b"} {
		m, err := pkg.MemberAt(groupTicket, n)
		if err != nil || !m.Shared || m.N != n || m.Ticket != protocol.ChildTicketN(groupTicket, n) {
			t.Fatalf("%+v, %v", m, err)
		}
		if own, _ := protocol.EncodePackage(m.Package); string(own) != string(body) {
			t.Errorf("the body of %s differs:\n%s\n%s", agent, own, body)
		}
		want := protocol.Summary{Type: protocol.Broadcast, Source: "implementer", Target: protocol.Target{Agent: agent}, Priority: protocol.Normal,
			Parent: groupTicket, Group: groupTicket, N: n + 1, Digest: "d"}
		if s := m.Summarize("d"); !reflect.DeepEqual(s, want) {
			t.Errorf("%+v", s)
		}
	}
	for _, n := range []int{-1, 2} {
		if _, err := pkg.MemberAt(groupTicket, n); refusal(t, err).Field != "members" {
			t.Errorf("member %d: %v", n, err)
		}
	}
}

// TestMembersDiffer: what a member says is laid over what the group says.
func TestMembersDiffer(t *testing.T) {
	path := "p"
	pkg := grouped(
		protocol.Member{Target: protocol.Target{Agent: "a"}, Reason: "own", Priority: protocol.High, Task: &protocol.Task{Description: "own"},
			Variables: free("x", "2", "z", "3"), Artifacts: protocol.Artifacts{List: []protocol.Artifact{{ID: "new"}}}},
		protocol.Member{Target: protocol.Target{Capability: "go"}, Artifacts: protocol.Artifacts{ByName: map[string]*string{"Plan": &path}}},
	)
	pkg.Key, pkg.Parent, pkg.Origin = "k", protocol.NewTicket(), groupTicket
	pkg.Context.Variables, pkg.Context.Artifacts = free("x", "1", "y", "1"), protocol.Artifacts{List: []protocol.Artifact{{ID: "old", Name: "Plan"}}}
	pkg.Task.Requirements = []string{"r"}
	pkg.Return = &protocol.ReturnProtocol{Expected: true}
	before, _ := protocol.EncodePackage(pkg)

	common := pkg
	common.Key, common.Members, common.Return, common.Origin, common.Parent = "", nil, nil, "", groupTicket
	first := common
	first.Target, first.Reason, first.Priority, first.Task = protocol.Target{Agent: "a"}, "own", protocol.High, protocol.Task{Description: "own"}
	first.Context.Variables = free("x", "2", "y", "1", "z", "3")
	first.Context.Artifacts = protocol.Artifacts{List: []protocol.Artifact{{ID: "old", Name: "Plan"}, {ID: "new"}}}
	second := common
	second.Target = protocol.Target{Capability: "go"}
	second.Context.Artifacts = protocol.Artifacts{List: []protocol.Artifact{{ID: "old", Name: "Plan", Path: "p"}}}
	for n, want := range []protocol.Package{first, second} {
		m, err := pkg.MemberAt(groupTicket, n)
		if err != nil || m.Shared || !reflect.DeepEqual(m.Package, want) {
			t.Errorf("%d: %v\n%+v\n%+v", n, err, m.Package, want)
		}
		if err := m.Package.ValidateOwn(vectorNow); err != nil {
			t.Errorf("%d: %v", n, err)
		}
		if err := m.Package.Validate(vectorNow); refusal(t, err).Field != "target.agents" {
			t.Errorf("from others: %v", err)
		}
		s := m.Summarize("d")
		if s.Group != groupTicket || s.Parent != groupTicket || s.N != n+1 || s.Aggregate != nil || s.ReturnExpected || s.Priority != want.Priority ||
			!reflect.DeepEqual(s.Target, want.Target) {
			t.Errorf("%+v", s)
		}
	}
	if after, _ := protocol.EncodePackage(pkg); string(after) != string(before) {
		t.Errorf("the group's package has changed:\n%s\n%s", before, after)
	}
}

// TestLateMember: what a group has promised is made though its deadline has passed meanwhile.
func TestLateMember(t *testing.T) {
	pkg := grouped(to("a"))
	pkg.Constraints.Deadline = vectorNow.Add(time.Minute)
	m, err := pkg.MemberAt(groupTicket, 0)
	if err != nil {
		t.Fatal(err)
	}
	later := vectorNow.Add(time.Hour)
	if err := m.Package.ValidateOwn(later); err != nil {
		t.Error(err)
	}
	if e := refusal(t, pkg.Validate(later)); e.Code != protocol.CodePast {
		t.Errorf("submitted after its deadline: %v", e)
	}
}

// TestTicketsDiffer: tickets that are derived from one ticket in different ways
// never meet.
func TestTicketsDiffer(t *testing.T) {
	seen := map[string]string{}
	note := func(name, ticket string) {
		if other, there := seen[ticket]; there {
			t.Errorf("%s and %s have the same ticket", name, other)
		}
		if _, err := protocol.ParseTicket(ticket); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if version := uuid.MustParse(ticket).Version(); version != 5 {
			t.Errorf("%s has a UUIDv%d, want a derived one (5)", name, version)
		}
		seen[ticket] = name
	}
	if version := uuid.MustParse(protocol.NewTicket()).Version(); version != 4 {
		t.Errorf("a ticket of nothing else is a UUIDv%d, want a random one (4)", version)
	}
	for n := range 12 {
		note(fmt.Sprintf("child %d", n), protocol.ChildTicketN(groupTicket, n))
	}
	note("return", protocol.ReturnTicket(groupTicket))
	note("redrive", protocol.RedriveTicket(groupTicket))
	note("key", protocol.TicketForKey(groupTicket, "return"))
}

// TestArtifactsWith: how a map and a list of artifacts are merged.
func TestArtifactsWith(t *testing.T) {
	named := func(pairs ...string) protocol.Artifacts {
		m := map[string]*string{}
		for i := 0; i < len(pairs); i += 2 {
			if m[pairs[i]] = nil; pairs[i+1] != "" {
				m[pairs[i]] = &pairs[i+1]
			}
		}
		return protocol.Artifacts{ByName: m}
	}
	list := func(all ...protocol.Artifact) protocol.Artifacts { return protocol.Artifacts{List: all} }
	for name, c := range map[string]struct{ a, later, want protocol.Artifacts }{
		"nothing":        {},
		"nothing before": {protocol.Artifacts{}, named("a", "1"), named("a", "1")},
		"nothing later":  {list(protocol.Artifact{ID: "a"}), protocol.Artifacts{}, list(protocol.Artifact{ID: "a"})},
		"two maps": {named("a", "1", "b", "", "c", "3"), named("a", "", "b", "2", "c", "4", "d", ""),
			named("a", "1", "b", "2", "c", "4", "d", "")},
		"two lists": {list(protocol.Artifact{ID: "a", Type: "code", Path: "old"}, protocol.Artifact{Name: "b"}, protocol.Artifact{Path: "c"}),
			list(protocol.Artifact{ID: "a", Path: "new", Status: "final"}, protocol.Artifact{ID: "d"}, protocol.Artifact{Path: "c", Name: "C"}, protocol.Artifact{ID: "d", Name: "D"}),
			list(protocol.Artifact{ID: "a", Type: "code", Path: "new", Status: "final"}, protocol.Artifact{Name: "b"}, protocol.Artifact{Path: "c", Name: "C"}, protocol.Artifact{ID: "d", Name: "D"})},
		"a list over a map": {named("Plan", "p", "Next", ""), list(protocol.Artifact{ID: "1", Name: "Plan", Status: "final"}),
			list(protocol.Artifact{Name: "Next"}, protocol.Artifact{ID: "1", Name: "Plan", Path: "p", Status: "final"})},
		"a map over a list": {list(protocol.Artifact{ID: "1", Name: "Plan", Path: "p"}), named("Plan", "", "Next", "n"),
			list(protocol.Artifact{ID: "1", Name: "Plan", Path: "p"}, protocol.Artifact{Name: "Next", Path: "n"})},
		"a map with no name": {named("", ""), list(protocol.Artifact{ID: "1"}), list(protocol.Artifact{ID: "1"})},
		"ids come first": {list(protocol.Artifact{ID: "1", Name: "same", Path: "same"}), list(protocol.Artifact{ID: "2", Name: "same", Path: "same"}),
			list(protocol.Artifact{ID: "1", Name: "same", Path: "same"}, protocol.Artifact{ID: "2", Name: "same", Path: "same"})},
		"then names": {list(protocol.Artifact{Name: "1", Path: "same"}), list(protocol.Artifact{Name: "2", Path: "same"}),
			list(protocol.Artifact{Name: "1", Path: "same"}, protocol.Artifact{Name: "2", Path: "same"})},
	} {
		before := [2]protocol.Artifacts{{List: slices.Clone(c.a.List)}, {List: slices.Clone(c.later.List)}}
		if got := c.a.With(c.later); !reflect.DeepEqual(got, c.want) {
			a, _ := json.Marshal(got)
			b, _ := json.Marshal(c.want)
			t.Errorf("%s: %s, want %s", name, a, b)
		}
		if !slices.Equal(c.a.List, before[0].List) || !slices.Equal(c.later.List, before[1].List) {
			t.Errorf("%s: changes what it was made of", name)
		}
	}
	// Many artifacts are no reason to wait.
	var many []protocol.Artifact
	for i := range 100_000 {
		many = append(many, protocol.Artifact{Path: fmt.Sprintf("dir/%d", i)})
	}
	if got := list(many...).With(list(many...)); len(got.List) != len(many) {
		t.Errorf("%d artifacts of %d", len(got.List), len(many))
	}
}

package record_test

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/agenthandoff/handoff/internal/record"
	"github.com/agenthandoff/handoff/protocol"
	"github.com/agenthandoff/handoff/protocol/redact"
)

// The cost of one handoff to the codec: its records and its package, as the product makes
// them.

var hotAt = time.Date(2026, 11, 22, 1, 50, 0, 123456000, time.UTC)

// hotPackage is a package of about a kilobyte, as it is submitted.
func hotPackage() protocol.Package {
	intent := "find out why the nightly build is slow"
	return protocol.Package{Source: "planner", Target: protocol.Target{Agent: "coder"}, Reason: "the plan is ready",
		Task: protocol.Task{ID: "T-1412", Type: "code", Description: "Make the nightly build as fast as it was in May.\nBisect if you have to.", Requirements: []string{"no new dependencies", "the tests stay as they are"}},
		Context: protocol.Context{UserIntent: &intent, Summary: "It takes 41 minutes, and took 12 in May.", KeyPoints: []string{"the cache is cold", "twice as many tests"},
			ConversationHistory: []protocol.Message{json.RawMessage(`{"role":"user","content":"Why is the build so slow? It was \"fast\" before."}`), json.RawMessage(`{"role":"assistant","name":"planner","content":"I shall read the logs first.\nThen I hand it off."}`)},
			Variables:           map[string]json.RawMessage{"repository": json.RawMessage(`"widgets"`), "minutes": json.RawMessage(`[12,18,33,41]`), "branch": json.RawMessage(`"main"`)},
			Decisions:           []protocol.Decision{{Description: "do not touch the release branch", MadeBy: "planner", At: hotAt}}},
		Expectations: protocol.Expectations{SuccessCriteria: []string{"under 15 minutes"}, TimeoutMS: 600_000}}
}

// hotRecords are the three appends of a handoff that succeeds at once.
func hotRecords(t testing.TB) map[string]protocol.Record {
	pkg := hotPackage()
	pkg.Normalize(hotAt)
	if err := pkg.Validate(hotAt); err != nil {
		t.Fatal(err)
	}
	body, err := protocol.EncodePackage(pkg)
	if err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256(body)
	summary := pkg.Summarize("sha256:" + hex.EncodeToString(sum[:]))
	policy := protocol.DefaultPolicy().With(summary.Overrides)
	meta := func(by string) protocol.Meta { return protocol.Meta{At: hotAt, By: by} }
	ticket, holder := "0b6ffd0c-6ac2-4a3c-9d0f-0a43c3a2c1f1", "9b2f3f6e-1d55-4f0a-8a57-3d3c7f0c2a11"
	s := protocol.State{Ticket: ticket, Phase: protocol.Pending, Summary: summary, Policy: policy, PackageSeq: protocol.Self, Agent: "coder", Offer: protocol.Self,
		Tried: []string{"coder"}, SubmittedAt: hotAt, UpdatedAt: hotAt, OfferedAt: hotAt}
	s.Deadline = hotAt.Add(720 * time.Hour)
	all := map[string]protocol.Record{}
	all["submitted"] = protocol.Record{ID: ticket, State: s, Events: []protocol.Event{
		&protocol.Submitted{Meta: meta("planner"), Ticket: ticket, Package: body, Summary: summary, Policy: policy}, &protocol.Offered{Meta: meta("planner"), Agent: "coder", Reason: "submitted"}}}
	s.Phase, s.Holder, s.LeaseMS, s.Fence, s.Attempt, s.AttemptsTotal = protocol.Working, holder, 30_000, protocol.Self, 1, 1
	s.PackageSeq, s.Offer, s.AcceptedAt, s.StartedAt, s.PrevHash = 1_234_567, 1_234_567, hotAt, hotAt, hex.EncodeToString(sum[:])
	all["accepted"] = protocol.Record{ID: ticket, State: s, Events: []protocol.Event{
		&protocol.Accepted{Meta: meta(holder), Offer: 1_234_567, Agent: "coder", Holder: holder, LeaseMS: 30_000, Attempt: 1}, &protocol.Started{Meta: meta(holder)}}}
	s.Phase, s.Closed, s.Outcome, s.Holder, s.LeaseMS, s.Fence = protocol.Complete, true, protocol.OutcomeSuccess, "", 0, 0
	s.ResultSeq, s.ClosedAt = protocol.Self, hotAt
	all["completed"] = protocol.Record{ID: ticket, State: s, Events: []protocol.Event{
		&protocol.Completed{Meta: meta(holder), Fence: 1_234_570, Status: protocol.Success, Result: json.RawMessage(`{"status":"success","content_type":"text","body":"` + strings.Repeat("done. ", 20) + `"}`)}}}
	return all
}

var hotNames = []string{"submitted", "accepted", "completed"}

func BenchmarkHotEncodeRecord(b *testing.B) {
	all := hotRecords(b)
	for _, name := range hotNames {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := record.Encode(all[name]); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func hotBodies(t testing.TB) map[string][]byte {
	bodies := map[string][]byte{}
	for name, made := range hotRecords(t) {
		body, err := record.Encode(made)
		if err != nil {
			t.Fatal(err)
		}
		bodies[name] = body
	}
	return bodies
}

func BenchmarkHotDecodeState(b *testing.B) {
	bodies := hotBodies(b)
	for _, name := range hotNames {
		body := bodies[name]
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			b.SetBytes(int64(len(body)))
			for b.Loop() {
				if _, _, err := record.DecodeState(body, 99); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkHotDecodeRecord(b *testing.B) {
	bodies := hotBodies(b)
	for _, name := range hotNames {
		body := bodies[name]
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			b.SetBytes(int64(len(body)))
			for b.Loop() {
				if _, err := record.Decode(body, 99); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func hotRedactor(t testing.TB) *redact.Redactor {
	redactor, err := redact.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	return redactor
}

// hotSteps are the operations on a package between its submitter and its worker.
func hotSteps(t testing.TB) map[string]func() {
	redactor := hotRedactor(t)
	complete := hotPackage()
	complete.Normalize(hotAt)
	body, err := protocol.EncodePackage(complete)
	if err != nil {
		t.Fatal(err)
	}
	check := func(err error) {
		if err != nil {
			t.Fatal(err)
		}
	}
	given := hotPackage()
	return map[string]func(){
		"normalize": func() { pkg := given; pkg.Normalize(hotAt) },
		"validate":  func() { check(complete.Validate(hotAt)) },
		"encode":    func() { _, err := protocol.EncodePackage(complete); check(err) },
		"redact": func() {
			if _, n, err := redactor.Package(t.Context(), body); n != 0 || err != nil {
				t.Fatal(n, err)
			}
		},
		"summarize": func() { complete.Summarize("sha256:") },
		"prepare": func() {
			pkg := given
			pkg.Normalize(hotAt)
			check(pkg.Validate(hotAt))
			body, err := protocol.EncodePackage(pkg)
			check(err)
			body, _, err = redactor.Package(t.Context(), body)
			check(err)
			sum := sha256.Sum256(body)
			pkg.Summarize("sha256:" + hex.EncodeToString(sum[:]))
		},
		"decode":        func() { _, err := protocol.DecodePackage(body); check(err) },
		"output schema": func() { _, err := record.PackageOutputSchema(body); check(err) },
		"ticket":        func() { protocol.NewTicket() },
	}
}

func BenchmarkHotPackage(b *testing.B) {
	steps := hotSteps(b)
	for _, name := range []string{"normalize", "validate", "encode", "redact", "summarize", "prepare", "decode", "output schema", "ticket"} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				steps[name]()
			}
		})
	}
}

// TestHotAllocations bounds the allocations of the codec for a handoff. It may allocate what the
// caller gets: the bytes, the texts of a state, its lists.
func TestHotAllocations(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates too")
	}
	most := map[string]float64{"encode submitted": 1, "encode accepted": 1, "encode completed": 1,
		"state submitted": 4, "state accepted": 4, "state completed": 4, "record submitted": 13, "record accepted": 10, "record completed": 8,
		"normalize": 0, "validate": 0, "encode": 1, "redact": 1, "summarize": 1, "prepare": 6, "decode": 18, "output schema": 1, "ticket": 2}
	steps := hotSteps(t)
	bodies := hotBodies(t)
	for name, made := range hotRecords(t) {
		body := bodies[name]
		steps["encode "+name] = func() { _, _ = record.Encode(made) }
		steps["state "+name] = func() { _, _, _ = record.DecodeState(body, 99) }
		steps["record "+name] = func() { _, _ = record.Decode(body, 99) }
	}
	for name, step := range steps {
		if got := testing.AllocsPerRun(100, step); got > most[name] {
			t.Errorf("%s allocates %.0f times, at most %.0f", name, got, most[name])
		}
	}
}

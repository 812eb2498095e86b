package protocol_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/agenthandoff/handoff/protocol"
)

// nested is free data of so many levels.
func nested(levels int) json.RawMessage {
	return json.RawMessage(strings.Repeat("[", levels) + strings.Repeat("]", levels))
}

// What a program puts together is checked as deep as what is read: a package
// that passes can be read by whoever gets it, however deep its free data lies.
func TestLevelsOfWhatAProgramMakes(t *testing.T) {
	packages := map[string]func(*protocol.Package, json.RawMessage){
		"output schema": func(p *protocol.Package, raw json.RawMessage) { p.Expectations.OutputSchema = raw },
		"variable": func(p *protocol.Package, raw json.RawMessage) {
			p.Context.Variables = map[string]json.RawMessage{"x": raw}
		},
		"step": func(p *protocol.Package, raw json.RawMessage) { p.Context.CompletedSteps = []json.RawMessage{raw} },
		"of a member": func(p *protocol.Package, raw json.RawMessage) {
			p.Type, p.Target = protocol.Broadcast, protocol.Target{}
			p.Members = []protocol.Member{{Target: protocol.Target{Agent: "coder"}, Variables: map[string]json.RawMessage{"x": raw}}}
		},
		"of a return": func(p *protocol.Package, raw json.RawMessage) {
			p.Returned = &protocol.Return{HandoffID: protocol.NewTicket(), Status: protocol.ReturnSuccess, Outcome: protocol.OutcomeSuccess,
				Members: []protocol.MemberReturn{{Result: &protocol.Result{Body: raw}}}}
		},
		"of a newer version": func(p *protocol.Package, raw json.RawMessage) {
			p.Version, p.Extra = "1.99", map[string]json.RawMessage{"x": raw}
		},
	}
	for name, put := range packages {
		t.Run(name, func(t *testing.T) {
			agree(t, func(levels int) (invalid error, unread error) {
				pkg := protocol.Package{Source: "lead", Target: protocol.Target{Agent: "coder"}, Reason: "x", Task: protocol.Task{Description: "x"}}
				put(&pkg, nested(levels))
				pkg.Normalize(vectorNow)
				body, err := protocol.EncodePackage(pkg)
				if err != nil {
					t.Fatal(err)
				}
				_, unread = protocol.DecodePackage(body)
				return pkg.ValidateOwn(vectorNow), unread
			})
		})
	}
	results := map[string]func(*protocol.Result, json.RawMessage){
		"body":     func(r *protocol.Result, raw json.RawMessage) { r.Body = raw },
		"variable": func(r *protocol.Result, raw json.RawMessage) { r.Variables = map[string]json.RawMessage{"x": raw} },
	}
	for name, put := range results {
		t.Run("result's "+name, func(t *testing.T) {
			agree(t, func(levels int) (invalid error, unread error) {
				var r protocol.Result
				put(&r, nested(levels))
				r.Normalize()
				body, err := protocol.EncodeResult(r)
				if err != nil {
					t.Fatal(err)
				}
				_, unread = protocol.DecodeResult(body)
				return r.Validate(), unread
			})
		})
	}
}

// agree tries all depths around the limit, of which some must pass and some not.
func agree(t *testing.T, try func(levels int) (invalid, unread error)) {
	t.Helper()
	seen := map[bool]int{}
	for levels := protocol.DepthMax - 8; levels <= protocol.DepthMax; levels++ {
		invalid, unread := try(levels)
		if (invalid == nil) != (unread == nil) {
			t.Errorf("%d levels: validated with %v, read with %v", levels, invalid, unread)
		}
		seen[invalid == nil]++
	}
	if len(seen) != 2 {
		t.Error(fmt.Sprint("all depths alike: ", seen))
	}
}

//go:build proof

package hostile

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/agenthandoff/handoff/internal/testworld"
	"github.com/agenthandoff/handoff/protocol"
	"github.com/agenthandoff/handoff/worker"
)

const (
	// watchdogTimeout bounds one honest handoff, one attack, and the end of a process, on a busy
	// machine.
	watchdogTimeout = 90 * time.Second
	// memoryBytesMax is how much a process may have had resident.
	memoryBytesMax = 1 << 30
	quietProbes    = 5 // probes before the attacks
)

// What an agent may write stops nothing but its own handoffs, where agents are inside.
func TestContentOnDev(t *testing.T) { contents(devSite(t)) }

// The same where agents are not trusted, and come in by a gateway.
func TestContentThroughAGateway(t *testing.T) { contents(gatewaySite(t)) }

func contents(s *site) {
	s.Helper()
	if s.Name() == "TestContentOnDev" {
		s.enter(absent) // registers it
	}
	source := s.enter(client)
	s.serve(server, s.enter(server), done)
	before, _ := s.probe(source, quietProbes, nil)
	stop, probed := make(chan struct{}), make(chan struct{})
	var during time.Duration
	var probes int
	go func() {
		defer close(probed)
		during, probes = s.probe(source, 1<<30, stop)
	}()
	begun := time.Now()
	attacks := s.attackAll()
	close(stop)
	<-probed
	s.Logf("%d attacks in %v: the slowest of %d probes took %v, and %v while it was quiet", attacks, time.Since(begun).Round(time.Second), probes, during, before)
	if probes == 0 {
		s.Error("no probe")
	}
	s.checkSupervised(source)
	s.checkProcesses()
}

// done is the work on an honest handoff.
func done(context.Context, worker.Handoff) (protocol.Result, error) {
	return protocol.Result{Body: json.RawMessage(`"done"`)}, nil
}

// attackAll has the villain submit each attack, and the accomplice answer it with what its
// package says. It returns when each has come to something.
func (s *site) attackAll() int {
	s.Helper()
	bad := s.enter(villain)
	s.serve(accomplice, s.enter(accomplice), func(ctx context.Context, h worker.Handoff) (protocol.Result, error) {
		how, text, _ := strings.Cut(h.Package.Task.Description, " ")
		switch how {
		case "fail":
			return protocol.Result{}, worker.Permanent(errors.New(text))
		case "progress":
			message, _ := json.Marshal(text)
			for range 3 {
				_ = h.Progress(ctx, protocol.Progress{Message: protocol.CutText(text, 16<<10), Details: message})
			}
			return protocol.Result{}, nil
		case "large":
			text = strings.Repeat(text, (400<<10)/len(text))
		case "schema":
			text = strings.Repeat("a", 30_000) + "!"
		}
		body, err := json.Marshal(text)
		return protocol.Result{Body: body}, err
	})
	all := allContent()
	var running sync.WaitGroup
	slots := make(chan struct{}, 8)
	for _, a := range all {
		slots <- struct{}{}
		running.Go(func() {
			defer func() { <-slots }()
			ctx, cancel := context.WithTimeout(s.ctx, watchdogTimeout)
			defer cancel()
			pkg := protocol.Package{Target: protocol.Target{Agent: accomplice}, Reason: "none", Task: protocol.Task{Description: a.task}}
			if err := json.Unmarshal([]byte(`{"max_attempts":1}`), &pkg.Policy); err != nil {
				s.Error(err)
			}
			pkg.Expectations.OutputSchema = a.schema
			pkg.Context.Variables = a.variables
			ticket, err := bad.submit(ctx, pkg)
			var refused *protocol.Error
			if errors.As(err, &refused) && refused.Code != protocol.CodeUnreachable {
				if !slices.ContainsFunc(strings.Fields(a.field), func(field string) bool { return strings.Contains(refused.Field, field) }) {
					s.Errorf("%s: refused in %q: %v", a.name, refused.Field, refused)
				}
				return
			}
			if err != nil {
				s.Errorf("%s: %v", a.name, err)
				return
			}
			state, err := bad.wait(ctx, ticket)
			if err != nil {
				s.Errorf("%s: %s does not close: %v", a.name, ticket, err)
			}
			if a.refused && state.Outcome == protocol.OutcomeSuccess {
				s.Errorf("%s: was accepted", a.name)
			}
		})
	}
	running.Wait()
	return len(all) + s.junk(bad) + s.commands()
}

// junk asks the gateway for everything with what is no request. Each is answered.
func (s *site) junk(bad access) (n int) {
	if bad.raw == nil {
		return 0
	}
	for _, verb := range []string{"Register", "Present", "ClaimMany", "Leave", "Acknowledge", "Heartbeat", "Progress", "Complete", "Fail", "Await", "HandOff", "Submit", "Status", "put", "read", "none"} {
		for _, body := range []string{"", "\x00\xff", `{"x":1e999999999}`, strings.Repeat("[", 400_000), `{"ticket":"` + strings.Repeat("eyJ-", 100_000) + `"}`} {
			if err := bad.raw(verb, body); err != nil {
				s.Errorf("%s with %.20q: %v", verb, body, err)
			}
			n++
		}
	}
	return n
}

// commands submits by the command line.
func (s *site) commands() int {
	if s.shell == nil {
		return 0
	}
	for name, killer := range slowPatterns {
		body, _ := json.Marshal(protocol.Package{Source: villain, Target: protocol.Target{Agent: accomplice}, Reason: "none",
			Task: protocol.Task{Description: "ok " + strings.Repeat(killer, (64<<10)/len(killer))}})
		path := filepath.Join(s.TempDir(), "package.json")
		if err := os.WriteFile(path, body, 0o600); err != nil {
			s.Fatal(name, err)
		}
		s.shell("submit", "-f", path)
	}
	return len(slowPatterns)
}

// content is one package, and what is answered to it.
type content struct {
	name      string
	task      string // how the accomplice answers, and with what
	schema    json.RawMessage
	variables map[string]json.RawMessage
	field     string // fields in which it may be refused at submission; "": it must not be
	refused   bool   // it must not succeed
}

// slowPatterns make a careless pattern look at the same text again and again.
var slowPatterns = map[string]string{
	"tokens":      "eyJ-",
	"a token":     "eyJaaaaaaaa.eyJaaaaaaaa.",
	"keys":        "-----BEGIN PRIVATE KEY-----",
	"key blocks":  "-----BEGIN A PRIVATE KEY BLOCK-----\\n" + strings.Repeat("A", 24),
	"users":       "://a:",
	"passwords":   "password=",
	"secrets":     "secret\"\\\\\\'",
	"long secret": "sk-a-",
	"bearers":     "bearer a.",
	"basic":       "authorization: basic ",
	"quotes":      `\"`,
}

func allContent() (all []content) {
	for name, killer := range slowPatterns {
		text := strings.Repeat(killer, (64<<10)/len(killer))
		raw, _ := json.Marshal(text)
		all = append(all, content{name: name + " in a package", task: "ok x", variables: map[string]json.RawMessage{"password": raw, "text": raw}})
		for _, how := range []string{"ok", "fail", "progress"} {
			all = append(all, content{name: name + ", " + how, task: how + " " + text[:30_000/len(killer)*len(killer)]})
		}
	}
	for n := range 16 {
		all = append(all, content{name: fmt.Sprint("a large result ", n), task: "large eyJ-"})
	}
	for name, schema := range map[string]string{
		"exponential references": exponential(24), "a reference to itself": `{"$ref":"#"}`,
		"two that refer to each other": `{"$defs":{"a":{"$ref":"#/$defs/b"},"b":{"$ref":"#/$defs/a"}},"$ref":"#/$defs/a"}`,
		"deep nesting":                 strings.Repeat(`{"not":`, 5_000) + "{}" + strings.Repeat("}", 5_000),
		"a reference elsewhere":        `{"$ref":"file:///etc/passwd"}`,
	} {
		all = append(all, content{name: name, task: "schema", schema: json.RawMessage(schema), field: "output_schema package", refused: true})
	}
	for n := range 9 {
		all = append(all, content{name: fmt.Sprint("large expressions ", n), task: "schema", schema: expressions(100 << 10), field: "output_schema package", refused: true})
	}
	nested := json.RawMessage(strings.Repeat("[", 9_000) + strings.Repeat("]", 9_000))
	all = append(all,
		content{name: "deep data", task: "ok x", variables: map[string]json.RawMessage{"x": nested}, field: "variables package"},
		content{name: "questions of a search", task: `ok " OR NEAR(" * ) AND ( ''; DROP TABLE handoffs; --`},
		content{name: "control characters", task: "ok \x1b]0;\x07\u202e\ufeff\u2028"})
	return all
}

// exponential is a schema of which each part refers twice to the next.
func exponential(depth int) string {
	var b strings.Builder
	b.WriteString(`{"$ref":"#/$defs/0","$defs":{`)
	for n := range depth {
		fmt.Fprintf(&b, `"%d":{"allOf":[{"$ref":"#/$defs/%d"},{"$ref":"#/$defs/%d"}]},`, n, n+1, n+1)
	}
	fmt.Fprintf(&b, `"%d":{"type":"integer"}}}`, depth)
	return b.String()
}

// expressions is a schema of regular expressions that are large when they are compiled.
func expressions(size int) json.RawMessage {
	var b strings.Builder
	b.WriteString(`{"type":"string","allOf":[{"type":"integer"}`)
	for n := 0; b.Len() < size; n++ {
		fmt.Fprintf(&b, `,{"pattern":"^(((a|b){1,100}){1,9}|%d)+$"}`, n)
	}
	b.WriteString(`]}`)
	return json.RawMessage(b.String())
}

// memoryPeak is what a process had resident at most, in bytes; 0 where that is not told.
func memoryPeak(p *testworld.Process) int64 {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.PID()))
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(status)) {
		if rest, ok := strings.CutPrefix(line, "VmHWM:"); ok {
			kb, _ := strconv.ParseInt(strings.Fields(rest)[0], 10, 64)
			return kb << 10
		}
	}
	return 0
}

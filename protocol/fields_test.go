package protocol

import (
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestEveryFieldHasARow compares docs/reference/fields.md with the list of the
// documents' fields, in both directions and document by document, and looks up
// each wire name that it mentions in the Go types.
func TestEveryFieldHasARow(t *testing.T) {
	rows := fieldRows(t)
	var documented []string
	for _, r := range rows {
		if slices.Contains(documented, r.field) {
			t.Errorf("%s has two rows", r.field)
		}
		documented = append(documented, r.field)
		if err := r.check(); err != nil {
			t.Errorf("%s: %v", r.field, err)
		}
	}
	fields := documentFields(t)
	for _, field := range fields {
		if !slices.Contains(documented, field) {
			t.Errorf("%s has no row in docs/reference/fields.md", field)
		}
	}
	for _, field := range documented {
		if !slices.Contains(fields, field) {
			t.Errorf("%s has a row and is not in testdata/document_fields.txt", field)
		}
	}
}

// TestEveryWireNameIsKnown is the other way round: a field of a package that
// no document asks for is a mistake, or needs a reason here.
func TestEveryWireNameIsKnown(t *testing.T) {
	var text strings.Builder
	for _, r := range fieldRows(t) {
		text.WriteString(r.wire + r.reader)
	}
	for _, root := range []string{"", "result", "ack", "answer", "profile", "fleet"} {
		for path := range leaves(wireRoots[root], root) {
			known := sameFields.Replace(path)
			if asked := strings.Contains(text.String(), "`"+known+"`"); asked == ownFields[known] {
				t.Errorf("%s is asked for by a document: %t; it is one of the design's own: %t", path, asked, ownFields[known])
			}
		}
	}
}

// sameFields are types that are used twice.
var sameFields = strings.NewReplacer("fleet.experiments.variants.policy.", "policy.", "fleet.experiments.variants.target.", "target.",
	"fleet.experiments.variants.routing.", "routing.", "fleet.experiments.variants.name", "fleet.approvals.name", "fleet.experiments.name", "fleet.approvals.name",
	"fleet.experiments.when.", "fleet.approvals.if.", "fleet.complexity.if.", "fleet.approvals.if.", "profile.policy.", "policy.", "fleet.policy.", "policy.", "profile.breaker.", "fleet.breaker.", "profile.limits_by.", "fleet.limits_by.", "fleet.limits.", "limits.", "fleet.classes.", "limits.", "context.previous.artifacts.", "context.artifacts.",
	"returned.members.result.artifacts.", "context.artifacts.", "returned.members.result.", "result.", "progress.usage.", "result.usage.", "returned.trail.progress.usage.", "result.usage.", "returned.trail.progress.", "returned.progress.", "returned.progress.usage.", "result.usage.", "result.artifacts.", "context.artifacts.",
	"returned.context_updates.artifacts_produced.", "context.artifacts.", "members.artifacts.", "context.artifacts.", "members.task.", "task.", "members.target.", "target.")

// ownFields are asked for by the design, not by one of the documents.
var ownFields = map[string]bool{
	"parent": true, "start_at": true, "policy.queue_timeout_ms": true, "policy.condition_timeout_ms": true, "policy.max_conditions": true,
	"policy.cancel_grace_ms": true, "context.artifacts.name": true,
	"answer.by": true, "answer.question": true, "answer.text": true, "answer.variables": true, "answer.deny_reason": true,
	"profile.paused": true, "profile.poll_patience_ms": true, "profile.updated_at": true, "profile.registered_by_worker": true,
	"workspace": true, "locks.paths.path": true, "locks.paths.mode": true, "locks.wait_ms": true, "profile.scopes": true,
	"profile.capabilities.id": true, "profile.hands_to": true, "profile.on_barred": true, "profile.accepts_from": true, "fleet.updated_at": true,
	"limits.max_depth": true, "limits.max_cost_micros": true, "limits.max_time_ms": true, "limits.share_percent": true, "limits.on_exhausted": true,
	"fleet.loops.edge_repeats": true,
	"fleet.limits_by.key":      true, "fleet.limits_by.max_concurrency": true, "fleet.limits_by.rate": true, "fleet.limits_by.per_ms": true,
	"next.from": true, "next.goto": true, "next.update": true, "next.times": true, "next.taken": true,
	"next.if.variable": true, "next.if.status": true, "next.if.eq": true, "next.if.ne": true, "next.if.lt": true,
	"next.if.le": true, "next.if.gt": true, "next.if.ge": true, "next.if.in": true, "next.if.exists": true,
	"bids.window_ms": true, "bids.most": true, "bids.least": true, "bids.weights.cost": true, "bids.weights.eta": true, "bids.weights.confidence": true, "profile.bids": true,
	"routing.on_open": true, "routing.on_unknown": true, "fleet.complexity.class": true, "constraints.complexity_by": true, "routing.by": true, "routing.ranked": true, "fleet.experiments.unit": true, "fleet.experiments.variants.weight": true, "fleet.routing.by": true, "fleet.breaker.window_ms": true, "fleet.breaker.share_percent": true, "fleet.breaker.open_ms": true,
	"fleet.breaker.open_max_ms": true, "fleet.breaker.probes": true,

	"context.previous.ticket": true, "context.previous.body_digest": true, "context.previous.body_bytes": true,
	"context.previous.summary": true, "context.previous.body": true,
	"approval.by": true, "approval.question": true, "approval.timeout_ms": true, "approval.on_timeout": true,
	"fleet.approvals.name": true, "fleet.approvals.by": true,
	"fleet.approvals.timeout_ms": true, "fleet.approvals.on_timeout": true, "fleet.approvals.if.min_risk": true, "fleet.approvals.if.source": true,
	"fleet.approvals.if.complexity": true, "fleet.approvals.if.min_tokens": true,
	"fleet.approvals.if.target": true, "fleet.approvals.if.capability": true, "fleet.approvals.if.type": true,
	"return.of": true, "origin": true, "traceparent": true, "tracestate": true, "policy.progress_timeout_ms": true, "policy.late_result": true, "policy.intervention_timeout_ms": true, "policy.on_malformed": true,
	"result.usage.tokens_in": true, "result.usage.tokens_out": true, "result.usage.cost_micros": true, "result.usage.calls": true, "result.usage.model": true,
	"profile.contract.context_schema": true, "profile.contract.result_schema": true, "profile.contract.modes": true, "profile.max_context_tokens": true,
	"profile.price.in_micros_per_mtok": true, "profile.price.out_micros_per_mtok": true,
	"result.set_aside": true, "result.malformed": true, "result.command.await": true, "result.command.for": true,
	"members.reason": true, "members.priority": true, "members.variables": true,
	"returned.result.summary": true, "returned.reason": true, "returned.progress.percent": true, "returned.progress.message": true,
	"returned.trail.at": true, "returned.trail.event": true, "returned.trail.agent": true, "returned.trail.to": true, "returned.trail.code": true,
	"returned.trail.words": true, "returned.trail.assessment": true, "returned.trail.level": true,
	"returned.package_digest": true, "returned.context_updates.conflicts.name": true, "returned.context_updates.conflicts.tickets": true,
	"returned.last_id": true, "returned.members.last_id": true,
	"returned.members.agent": true, "returned.members.ticket": true, "returned.members.closed": true, "returned.members.status": true, "returned.members.outcome": true,
}

type fieldRow struct{ field, wire, reader string }

var rowForm = regexp.MustCompile("^\\| (`.+?`) \\| (.+?) \\| (.+?) \\|$")

func fieldRows(t *testing.T) []fieldRow {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "docs", "reference", "fields.md"))
	if err != nil {
		t.Fatal(err)
	}
	var rows []fieldRow
	document := ""
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSpace(line)
		if title, found := strings.CutPrefix(line, "## Document "); found {
			document, _, _ = strings.Cut(title, ":")
		}
		if !strings.HasPrefix(line, "| `") {
			continue
		}
		cells := rowForm.FindStringSubmatch(line)
		if cells == nil || document == "" {
			t.Fatalf("no row of three cells: %s", line)
		}
		names, wires := quoted.FindAllStringSubmatch(cells[1], -1), quoted.FindAllString(cells[2], -1)
		for i, name := range names {
			wire := cells[2]
			switch {
			case wire == "as named":
				wire = name[0]
			case len(names) > 1 && len(wires) == len(names):
				wire = wires[i]
			}
			rows = append(rows, fieldRow{document + ": " + name[1], wire, cells[3]})
		}
	}
	return rows
}

func documentFields(t *testing.T) []string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", "document_fields.txt"))
	if err != nil {
		t.Fatal(err)
	}
	var fields []string
	for line := range strings.Lines(string(text)) {
		if line = strings.TrimSpace(line); line != "" && line[0] != '#' {
			fields = append(fields, line)
		}
	}
	return fields
}

var quoted = regexp.MustCompile("`([^`]+)`")

func (r fieldRow) check() error {
	elsewhere := strings.HasPrefix(r.wire, "not on the wire: ")
	if names := quoted.FindAllString(r.wire, -1); !elsewhere && len(names) == 0 {
		return fmt.Errorf("has no wire name, and no word why")
	}
	if !elsewhere && r.reader == "–" {
		return fmt.Errorf("is read by nobody")
	}
	for _, name := range quoted.FindAllStringSubmatch(r.wire+" "+r.reader, -1) {
		if strings.HasPrefix(name[1], "handoff ") { // a command
			continue
		}
		if err := resolveWire(name[1]); err != nil {
			return err
		}
	}
	return nil
}

// wireRoots are what a wire name begins with; a package's begin with nothing.
var wireRoots = map[string]reflect.Type{
	"": reflect.TypeFor[Package](), "result": reflect.TypeFor[Result](), "ack": reflect.TypeFor[Ack](),
	"answer": reflect.TypeFor[Answer](), "profile": reflect.TypeFor[Profile](), "fleet": reflect.TypeFor[Fleet](), "holder": reflect.TypeFor[Holder](),
	"state": reflect.TypeFor[State](), "error": reflect.TypeFor[Error](),
	"audit_record": reflect.TypeFor[AuditRecord](),
}

// resolveWire looks up a wire name such as context.phase or
// events.offered.agent over the JSON tags of the Go types.
func resolveWire(name string) error {
	root, rest, _ := strings.Cut(name, ".")
	at := wireRoots[root]
	switch {
	case root == "events":
		kind, path, _ := strings.Cut(rest, ".")
		if newEvent[EventType(kind)] == nil {
			return fmt.Errorf("`%s`: there is no event %s", name, kind)
		}
		if at, rest = reflect.TypeOf(newEvent[EventType(kind)]()), path; path == "type" { // written by EncodeEvent
			return nil
		}
	case at == nil:
		at, rest = wireRoots[""], name
	}
	for step := range strings.SplitSeq(rest, ".") {
		next := jsonFields(at)[step]
		if next == nil {
			return fmt.Errorf("`%s`: %s has no field %s", name, at, step)
		}
		at = next
	}
	return nil
}

// jsonFields are the fields of a type, or of what its lists and maps hold, by
// their wire names. Those of embedded structs are its own.
func jsonFields(t reflect.Type) map[string]reflect.Type {
	for t.Kind() == reflect.Pointer || t.Kind() == reflect.Slice || t.Kind() == reflect.Map {
		t = t.Elem()
	}
	if t == reflect.TypeFor[Artifacts]() {
		t = reflect.TypeFor[Artifact]()
	}
	fields := map[string]reflect.Type{}
	if t.Kind() != reflect.Struct || t == reflect.TypeFor[Time]() {
		return fields
	}
	for _, f := range reflect.VisibleFields(t) {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if !f.Anonymous && name != "-" {
			fields[name] = f.Type
		}
	}
	return fields
}

// leaves are the paths of the fields below t that have no fields of their own.
func leaves(t reflect.Type, path string) map[string]bool {
	all := map[string]bool{}
	for name, of := range jsonFields(t) {
		at := strings.TrimPrefix(path+"."+name, ".")
		below := leaves(of, at)
		if len(below) == 0 {
			all[at] = true
		}
		for leaf := range below {
			all[leaf] = true
		}
	}
	return all
}

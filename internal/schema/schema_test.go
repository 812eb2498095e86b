package schema_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/agenthandoff/handoff/internal/schema"
	"github.com/agenthandoff/handoff/protocol"
)

var documents = []struct {
	name string
	text []byte
	of   reflect.Type
}{
	{"package", schema.Package(), reflect.TypeFor[protocol.Package]()},
	{"result", schema.Result(), reflect.TypeFor[protocol.Result]()},
	{"ack", schema.Ack(), reflect.TypeFor[protocol.Ack]()},
	{"answer", schema.Answer(), reflect.TypeFor[protocol.Answer]()},
	{"profile", schema.Profile(), reflect.TypeFor[protocol.Profile]()},
}

// TestSchemasAgreeWithTheTypes walks each schema beside the Go type it is for:
// the same fields in both, values of the same kind, the same words in enums.
func TestSchemasAgreeWithTheTypes(t *testing.T) {
	for _, d := range documents {
		t.Run(d.name, func(t *testing.T) {
			var root map[string]any
			if err := json.Unmarshal(d.text, &root); err != nil {
				t.Fatal(err)
			}
			compiler := jsonschema.NewCompiler()
			doc, _ := jsonschema.UnmarshalJSON(bytes.NewReader(d.text))
			if err := compiler.AddResource("schema.json", doc); err != nil {
				t.Fatal(err)
			}
			if _, err := compiler.Compile("schema.json"); err != nil {
				t.Fatal(err)
			}
			c := comparison{t: t, root: root, used: map[string]bool{}}
			c.value("", root, d.of)
			for name := range object(root["$defs"]) {
				if !c.used[name] {
					t.Errorf("$defs.%s is for nothing", name)
				}
			}
		})
	}
}

// words are the values that a field of a named type may have.
var words = map[reflect.Type][]string{
	reflect.TypeFor[protocol.Type]():         texts(protocol.Types),
	reflect.TypeFor[protocol.Trigger]():      texts(protocol.Triggers),
	reflect.TypeFor[protocol.Priority]():     texts(protocol.Priorities),
	reflect.TypeFor[protocol.Risk]():         texts(protocol.Risks),
	reflect.TypeFor[protocol.BarredMode]():   texts(protocol.BarredModes),
	reflect.TypeFor[protocol.Approve]():      texts(protocol.Approves),
	reflect.TypeFor[protocol.HandoffMode]():  texts(protocol.HandoffModes),
	reflect.TypeFor[protocol.LockMode]():     texts(protocol.LockModes),
	reflect.TypeFor[protocol.OnOpen]():       texts(protocol.OnOpens),
	reflect.TypeFor[protocol.RouteBy]():      texts(protocol.RouteBys),
	reflect.TypeFor[protocol.TransferMode](): texts(protocol.TransferModes), reflect.TypeFor[protocol.SummaryBy](): texts(protocol.SummaryBys),
	reflect.TypeFor[protocol.Classifier]():      texts(protocol.Classifiers),
	reflect.TypeFor[protocol.ApprovalTimeout](): texts(protocol.ApprovalTimeouts),
	reflect.TypeFor[protocol.OnTimeout]():       texts(protocol.OnTimeouts),
	reflect.TypeFor[protocol.OnNoTaker]():       texts(protocol.OnNoTakers),
	reflect.TypeFor[protocol.ResultStatus]():    texts(protocol.ResultStatuses),
	reflect.TypeFor[protocol.AckStatus]():       texts(protocol.AckStatuses),
	reflect.TypeFor[protocol.Aggregation]():     texts(protocol.Aggregations),
	reflect.TypeFor[protocol.LateResult]():      texts(protocol.LateResults),
	reflect.TypeFor[protocol.OnDeadline]():      texts(protocol.OnDeadlines),
	reflect.TypeFor[protocol.OnExhausted]():     texts(protocol.OnExhausteds),
	reflect.TypeFor[protocol.BudgetAction]():    texts(protocol.BudgetActions),
	reflect.TypeFor[protocol.OnMalformed]():     texts(protocol.OnMalformeds),
	reflect.TypeFor[protocol.Outcome]():         texts(protocol.Outcomes),
	reflect.TypeFor[protocol.ReturnStatus]():    texts(protocol.ReturnStatuses),
	reflect.TypeFor[protocol.EventType]():       texts(trailEvents),
}

var trailEvents = []protocol.EventType{protocol.EventRejected, protocol.EventConditioned, protocol.EventAnswered, protocol.EventEscalated, protocol.EventRerouted,
	protocol.EventTimedOut, protocol.EventLeaseLost, protocol.EventFailed, protocol.EventRedriven}

// fieldWords are those of fields whose type is a plain string.
var fieldWords = map[string][]string{
	"content_type": protocol.ContentTypes, "return.wait": protocol.Waits, "return.of": texts(protocol.ReturnScopes),
	"constraints.complexity": protocol.Complexities, "context.files_in_progress.lock_type": protocol.LockTypes,
	"context.artifacts.status": protocol.ArtifactStatuses, "context.previous.artifacts.status": protocol.ArtifactStatuses, "artifacts.status": protocol.ArtifactStatuses,
	"members.artifacts.status": protocol.ArtifactStatuses, "returned.context_updates.artifacts_produced.status": protocol.ArtifactStatuses,
	"returned.members.result.artifacts.status": protocol.ArtifactStatuses,
	"returned.result.content_type":             protocol.ContentTypes, "returned.members.result.content_type": protocol.ContentTypes,
}

func texts[T ~string](list []T) []string {
	all := make([]string, len(list))
	for i, word := range list {
		all[i] = string(word)
	}
	return all
}

type comparison struct {
	t    *testing.T
	root map[string]any
	used map[string]bool // definitions
}

func object(v any) map[string]any {
	o, _ := v.(map[string]any)
	return o
}

// resolve follows references.
func (c *comparison) resolve(path string, s map[string]any) map[string]any {
	for {
		ref, ok := s["$ref"].(string)
		if !ok {
			return s
		}
		name, local := strings.CutPrefix(ref, "#/$defs/")
		next := object(object(c.root["$defs"])[name])
		if !local || next == nil {
			c.t.Fatalf("%s: %s leads nowhere", path, ref)
		}
		c.used[name] = true
		s = next
	}
}

// alternative is the one of s's alternatives that is of the given JSON type.
func (c *comparison) alternative(path string, s map[string]any, kind string) map[string]any {
	any, _ := s["anyOf"].([]any)
	for _, a := range any {
		if inner := c.resolve(path, object(a)); inner["type"] == kind {
			return inner
		}
	}
	c.t.Fatalf("%s: none of the alternatives is of type %s", path, kind)
	return nil
}

func (c *comparison) value(path string, s map[string]any, of reflect.Type) {
	s = c.resolve(path, s)
	switch of {
	case reflect.TypeFor[json.RawMessage]():
		if path == "command.goto" { // free in Go, read by Command.Targets
			list := c.alternative(path, s, "array")
			items := c.resolve(path, object(list["items"]))
			c.value(path, c.alternative(path, items, "object"), reflect.TypeFor[protocol.Goto]())
		}
		return
	case reflect.TypeFor[time.Time]():
		c.want(path, s, "string")
		if s["format"] != "date-time" {
			c.t.Errorf("%s: an instant has the format date-time", path)
		}
		return
	case reflect.TypeFor[protocol.Artifacts]():
		list := c.alternative(path, s, "array")
		c.value(path, object(list["items"]), reflect.TypeFor[protocol.Artifact]())
		named := object(c.alternative(path, s, "object")["additionalProperties"])
		if fmt.Sprint(named["type"]) != "[string null]" {
			c.t.Errorf("%s: a named artifact is a path or null", path)
		}
		return
	case reflect.TypeFor[protocol.FileReference](), reflect.TypeFor[protocol.RequiredCapability](), reflect.TypeFor[protocol.Capability]():
		c.alternative(path, s, "string")
		s = c.alternative(path, s, "object")
	}
	switch of.Kind() {
	case reflect.Pointer:
		c.value(path, s, of.Elem())
	case reflect.Struct:
		c.object(path, s, of)
	case reflect.Slice:
		c.want(path, s, "array")
		if of.Elem() != reflect.TypeFor[json.RawMessage]() {
			c.value(path, object(s["items"]), of.Elem())
		}
	case reflect.Map:
		c.want(path, s, "object")
	case reflect.String:
		c.text(path, s, of)
	case reflect.Int, reflect.Int64:
		c.want(path, s, "integer")
		c.bounded(path, s)
	case reflect.Float64:
		c.want(path, s, "number")
		c.bounded(path, s)
	case reflect.Bool:
		c.want(path, s, "boolean")
	default:
		c.t.Errorf("%s: nobody thought of a %s", path, of)
	}
}

func (c *comparison) want(path string, s map[string]any, kind string) {
	if s["type"] != kind {
		c.t.Errorf("%s: is of type %v in the schema and %s in Go", path, s["type"], kind)
	}
}

func (c *comparison) bounded(path string, s map[string]any) {
	if strings.HasPrefix(path, "policy.") || strings.HasPrefix(path, "next.if.") { // TestPolicySchema; any number is compared
		return
	}
	most, known := maxima[path]
	if s["minimum"] == nil || !known || s["maximum"] != float64(most) {
		c.t.Errorf("%s: is from %v to %v in the schema and up to %v in Go", path, s["minimum"], s["maximum"], most)
	}
}

func init() {
	for _, of := range []string{"usage.", "returned.progress.usage.", "returned.trail.progress.usage.", "returned.members.result.usage."} {
		for _, name := range []string{"tokens_in", "tokens_out", "tokens", "cost_micros", "calls", "time_ms"} {
			maxima[of+name] = protocol.UsageMax
		}
	}
}

// maxima are the limits of every number.
var maxima = map[string]int64{
	"approval.timeout_ms": protocol.ApprovalTimeoutMaxMS, "autonomy_budget": protocol.BudgetMax, "autonomy_budget.amount": protocol.BudgetMax, "constraints.budget": protocol.BudgetMax,
	"limits.max_handoffs": protocol.MaxHandoffsMax, "limits.max_depth": protocol.MaxDepthMax, "limits.max_agents": protocol.MaxAgentsMax, "limits.max_tokens": protocol.TokensMax,
	"limits.max_cost_micros": protocol.MaxCostMicrosMax, "limits.max_time_ms": protocol.MaxTimeMaxMS, "limits.share_percent": 100,
	"limits_by.max_concurrency": protocol.KeyConcurrencyMax, "limits_by.rate": protocol.KeyRateMax, "limits_by.per_ms": protocol.KeyPerMaxMS,
	"bids.window_ms": protocol.BidWindowMaxMS, "bids.most": protocol.BiddersMax, "bids.least": protocol.BiddersMax,
	"bids.weights.cost": protocol.BidWeightMax, "bids.weights.eta": protocol.BidWeightMax, "bids.weights.confidence": protocol.BidWeightMax,
	"question":   protocol.QuestionMax,
	"next.times": protocol.NextTimesMax, "next.taken": protocol.NextTimesMax,
	"context.previous.body_bytes":           protocol.ResultBytesMax,
	"context.history_transfer.max_messages": protocol.HistoryMessagesMax, "context.history_transfer.omitted": protocol.HistoryMessagesMax,
	"context.history_transfer.max_tokens": protocol.TokensMax, "context.history_transfer.original_tokens": protocol.TokensMax, "context.history_transfer.tokens": protocol.TokensMax,
	"expectations.timeout_ms": protocol.WorkTimeoutMaxMS, "expectations.max_iterations": protocol.IterationsMax,
	"required_capabilities.min_proficiency": 1, "return.timeout_ms": protocol.ReturnTimeoutMaxMS,
	"iterations": protocol.IterationsMax, "price.in_micros_per_mtok": protocol.UsageMax, "price.out_micros_per_mtok": protocol.UsageMax,
	"returned.audit.tokens_consumed":     protocol.TokensMax,
	"returned.members.result.iterations": protocol.IterationsMax, "returned.progress.percent": 100, "returned.trail.progress.percent": 100, "returned.trail.level": protocol.EscalationsMax,
	"retry_after_ms": protocol.RetryAfterMaxMS, "estimated_completion_ms": protocol.EstimateMaxMS,
	"capabilities.proficiency": 1, "max_concurrency": protocol.ConcurrencyMax, "max_execution_time_ms": protocol.WorkTimeoutMaxMS,
	"max_context_tokens": protocol.TokensMax, "poll_patience_ms": protocol.PollPatienceMaxMS, "locks.wait_ms": protocol.LockWaitMaxMS,
	"breaker.threshold": protocol.BreakerThresholdMax, "breaker.window_ms": protocol.BreakerWindowMaxMS, "breaker.share_percent": protocol.BreakerSharePctMax,
	"breaker.open_ms": protocol.BreakerOpenMaxMS, "breaker.open_max_ms": protocol.BreakerOpenLimitMS, "breaker.probes": protocol.BreakerProbesMax,
}

func (c *comparison) text(path string, s map[string]any, of reflect.Type) {
	want, named := words[of]
	if !named {
		want = fieldWords[path]
	}
	if want == nil {
		c.want(path, s, "string")
		if of != reflect.TypeFor[string]() || s["enum"] != nil {
			c.t.Errorf("%s: the words it may hold are not listed", path)
		}
		return
	}
	var have []string
	list, _ := s["enum"].([]any)
	for _, word := range list {
		have = append(have, fmt.Sprint(word))
	}
	if !slices.Equal(have, want) {
		c.t.Errorf("%s: the schema allows %q, Go %q", path, have, want)
	}
}

func (c *comparison) object(path string, s map[string]any, of reflect.Type) {
	c.want(path, s, "object")
	if s["additionalProperties"] != false && s["unevaluatedProperties"] != false {
		c.t.Errorf("%s: the schema allows any field", path)
	}
	fields := map[string]reflect.Type{}
	for i := range of.NumField() {
		name, _, _ := strings.Cut(of.Field(i).Tag.Get("json"), ",")
		if name != "-" {
			fields[name] = of.Field(i).Type
		}
	}
	properties := object(s["properties"])
	for name := range properties {
		if fields[name] == nil {
			c.t.Errorf("%s.%s: is in the schema and not in %s", path, name, of)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		at := strings.TrimPrefix(path+"."+name, ".")
		if properties[name] == nil {
			c.t.Errorf("%s: is in %s and not in the schema", at, of)
			continue
		}
		c.value(at, object(properties[name]), fields[name])
	}
	required, _ := s["required"].([]any)
	for _, name := range required {
		if properties[fmt.Sprint(name)] == nil {
			c.t.Errorf("%s.%s: is required and no field", path, name)
		}
	}
}

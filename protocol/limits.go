package protocol

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"math"
	"slices"
	"strings"

	"github.com/agenthandoff/handoff/internal/wirejson"
)

// Limits of input from outside. Everything has one. Beyond it the input is refused with
// CodeTooLarge (sizes and counts) or CodeInvalid (numbers), and the message contains the limit.
// Limits of durations and of counts that control the lifecycle are in policy.go.
const (
	// PackageBytesMax is the largest package, in bytes of JSON. Larger work is stored in files, handed
	// off as artifacts.
	PackageBytesMax = 64 << 20
	// ResultBytesMax is the largest result, in bytes of JSON.
	ResultBytesMax = 64 << 20
	// InlineBytesMax is the largest package or result inside an append or an offer. A larger body is
	// stored in the object store.
	InlineBytesMax = 256 << 10
	// PreviousBodyBytesMax is the largest body of a result that the next agent of a chain gets with
	// its package: half of InlineBytesMax. A larger one is named by digest.
	PreviousBodyBytesMax = InlineBytesMax / 2
	// previousSummaryBytesMax is how much of the summary it gets. previousArtifactsBytesMax is the size
	// of the largest artifacts, in addition to those of the context.
	previousSummaryBytesMax   = 16 << 10
	previousArtifactsBytesMax = 64 << 10
	// answerBytesMax is the largest answer, in bytes of JSON: it is stored inside an append.
	answerBytesMax = InlineBytesMax
	// AckBytesMax is the largest acknowledgement, in bytes of JSON.
	AckBytesMax = 64 << 10
	// ProgressBytesMax is the largest progress report, in bytes of JSON.
	ProgressBytesMax = 64 << 10
	// profileBytesMax is the largest profile of an agent, in bytes of JSON.
	profileBytesMax = 64 << 10
	// FleetBytesMax is the largest record of a fleet's settings, in bytes of JSON.
	FleetBytesMax = 64 << 10
	// DepthMax is the nesting depth of lists and objects.
	DepthMax = wirejson.DepthMax

	// AgentsMax is how many agents one package may name.
	AgentsMax = 1000
	// KeyBytesMax is the longest idempotency key.
	KeyBytesMax = 256
	// NameBytesMax is the longest name or foreign id: of a task, a workflow, a conversation, a user, a
	// trace. The state keeps some of them.
	NameBytesMax = 256
	// RequiredCapabilitiesMax is how many capabilities one package may require.
	RequiredCapabilitiesMax = 32
	// TokensMax and IterationsMax bound counters and their limits.
	TokensMax     = 1_000_000_000_000
	IterationsMax = 1_000_000
	// HistoryMessagesMax bounds history_transfer.max_messages.
	HistoryMessagesMax = 1_000_000
	// BudgetMax bounds a budget, in the fleet's own unit.
	BudgetMax = 1e15

	// experimentsMax is how many experiments a fleet has, variantsMax how many variants each, and
	// variantWeightMax the largest weight of one.
	experimentsMax   = 16
	variantsMax      = 8
	variantWeightMax = 1000
	// RankedMax is how many agents a package may name besides its target.
	RankedMax = 8
	// ApprovalsMax is how many approvals a state keeps, and approvalRulesMax how many rules the
	// fleet has.
	ApprovalsMax     = 8
	approvalRulesMax = 16
	// complexityRulesMax is how many rules of complexity the fleet has.
	complexityRulesMax = 16
	// questionBytesMax is the longest question to an approver.
	questionBytesMax = 1 << 10
	// ApprovalTimeoutDefaultMS is the default time for an approver to answer.
	ApprovalTimeoutDefaultMS = 24 * 3_600_000
	approvalTimeoutMinMS     = 1_000
	ApprovalTimeoutMaxMS     = 30 * 24 * 3_600_000
	// DecisionsMax is how many decisions of the work a state keeps.
	DecisionsMax = 8
	// DecisionIDBytesMax is the longest id of a decision, which the state keeps whole.
	DecisionIDBytesMax = 128
	// DecidersMax is how many agents a package names to decide after a denial.
	DecidersMax = 16
	// ReasonBytesMax is the longest reason of an acknowledgement or a denial.
	ReasonBytesMax = 16 << 10
	// FailureBytesMax is how much of a failure's message an event keeps.
	FailureBytesMax = 16 << 10
	// ProgressMessageBytesMax is the longest message of a progress report.
	ProgressMessageBytesMax = 4 << 10
	// needsMax is how many things of one kind a conditional may ask for, and
	// NeedBytesMax is the longest of them.
	needsMax     = 64
	NeedBytesMax = 1 << 10

	// capabilitiesMax and examplesMax bound the lists of a profile.
	capabilitiesMax = 256
	examplesMax     = 64
	// patternsMax bounds each list of patterns of agents in a profile.
	patternsMax = 64
	// DeadlockMax is how many handoffs of a circle its event names.
	DeadlockMax = 16
	// ConcurrencyMax is how many handoffs one agent, or one worker, may have at once.
	ConcurrencyMax = 10_000
	// pollPatienceDefaultMS, pollPatienceMinMS and PollPatienceMaxMS bound how long
	// one poll keeps its agent present.
	pollPatienceDefaultMS = 5 * 60_000
	pollPatienceMinMS     = 1_000
	PollPatienceMaxMS     = LeaseMaxMS
	// gotoMax is how many agents a command may name.
	gotoMax = AgentsMax
	// AwaitMax is how many handoffs one result may wait for.
	AwaitMax = 64
	// awaitTimeoutMS is how long a result waits for a delegation without a timeout.
	awaitTimeoutMS = 3_600_000

	// ReturnTimeoutMaxMS bounds how long a delegation waits for its return.
	ReturnTimeoutMaxMS = WorkTimeoutMaxMS
	// EstimateMaxMS bounds an estimated completion.
	EstimateMaxMS = DeadlineMaxMS
)

const (
	// UsageMax bounds each figure of a Usage.
	UsageMax = TokensMax
	// usageModelBytesMax bounds the name of a model.
	usageModelBytesMax = 128
	// AttemptsUsageMax is how many attempts' usage a state remembers: those that may have a late
	// result, and the current one.
	AttemptsUsageMax = LateResultsMax + 1
)

// Usage is the usage of an attempt so far. It is cumulative: a lost or repeated report changes
// nothing, because the next one contains it.
type Usage struct {
	TokensIn  int64 `json:"tokens_in,omitempty"`
	TokensOut int64 `json:"tokens_out,omitempty"`
	Tokens    int64 `json:"tokens,omitempty"` // in total; at least in and out together
	// CostMicros is the cost, in millionths of the fleet's currency.
	CostMicros int64  `json:"cost_micros,omitempty"`
	Calls      int64  `json:"calls,omitempty"`            // of models
	TimeMS     int64  `json:"time_ms,omitempty"`          // of work, as the program reports it
	Model      string `json:"model,omitempty" redact:"-"` // letters, digits and ._:/@+-
}

// meterCommand adds to the usage of a result the values of update.metrics of its command:
// tokens_used, and time_elapsed in seconds. If a figure is in usage too, the larger one counts.
func (r *Result) meterCommand() {
	if r.Command == nil || !bytes.Contains(r.Command.Update, []byte(`"metrics"`)) {
		return
	}
	var update struct {
		Metrics struct {
			Tokens  any `json:"tokens_used"`
			Elapsed any `json:"time_elapsed"`
		} `json:"metrics"`
	}
	if json.Unmarshal(r.Command.Update, &update) != nil {
		return
	}
	figure := func(value any, scale float64) int64 { // any other value is left to the program
		n, _ := value.(float64)
		if n *= scale; n > 0 && n <= UsageMax {
			return int64(n)
		}
		return 0
	}
	metered := Usage{Tokens: figure(update.Metrics.Tokens, 1), TimeMS: figure(update.Metrics.Elapsed, 1000)}
	if metered.IsZero() {
		return
	}
	if r.Usage != nil {
		metered = r.Usage.Max(metered)
	}
	r.Usage = &metered
}

// UsageSource is the origin of a report of usage.
type UsageSource string

const (
	UsageResult   UsageSource = "result"   // the output of a program
	UsageReport   UsageSource = "report"   // a report of usage alone
	UsageEstimate UsageSource = "estimate" // of a lost attempt that had reported nothing
)

// Normalize completes the total. An invalid one stays unchanged.
func (u *Usage) Normalize() {
	if u.Tokens >= 0 {
		u.Tokens = max(u.Tokens, u.TokensIn+u.TokensOut)
	}
}

// figures returns the counts of a usage, by name.
func (u *Usage) figures() []struct {
	name  string
	value *int64
} {
	return []struct {
		name  string
		value *int64
	}{{"tokens_in", &u.TokensIn}, {"tokens_out", &u.TokensOut}, {"tokens", &u.Tokens}, {"cost_micros", &u.CostMicros}, {"calls", &u.Calls}, {"time_ms", &u.TimeMS}}
}

// Validate checks a usage: each figure is from 0 to UsageMax, and one of them is more than 0.
func (u Usage) Validate() error {
	if u.IsZero() {
		return Errorf(CodeMissing, "usage", "is empty: give tokens, cost_micros, calls or time_ms")
	}
	return u.validate("usage").orNil()
}

func (u *Usage) validate(field string) *Error {
	if u == nil {
		return nil
	}
	for _, f := range u.figures() {
		if err := between(field+"."+f.name, *f.value, 0, UsageMax); err != nil {
			return err
		}
	}
	if u.Model != "" && !IsModel(u.Model) {
		return Errorf(CodeInvalid, field+".model", "must be at most %d letters, digits and ._:/@+-, not %q", usageModelBytesMax, CutText(u.Model, usageModelBytesMax))
	}
	return nil
}

// IsModel reports whether a text can be the name of a model. Free text, which may hold secrets, is
// excluded.
func IsModel(name string) bool {
	if name == "" || len(name) > usageModelBytesMax {
		return false
	}
	for _, c := range []byte(name) {
		if (c|0x20 < 'a' || c|0x20 > 'z') && (c < '0' || c > '9') && !strings.ContainsRune("._:/@+-", rune(c)) {
			return false
		}
	}
	return true
}

// IsZero reports whether all counts are 0.
func (u Usage) IsZero() bool {
	u.Model = ""
	return u == Usage{}
}

// Beyond returns how much a report exceeds another one of the same attempt, figure by figure.
func (u Usage) Beyond(said Usage) Usage {
	more, before := u.figures(), said.figures()
	for i := range more {
		*more[i].value = max(0, min(*more[i].value, UsageMax)-*before[i].value)
	}
	return u
}

// Plus adds the usage of more. The model is that of the later report.
func (u Usage) Plus(more Usage) Usage {
	sum, added := u.figures(), more.figures()
	for i := range sum {
		*sum[i].value += *added[i].value
	}
	if IsModel(more.Model) {
		u.Model = more.Model
	}
	return u
}

// Max returns the larger figure of two reports of one attempt, for each.
func (u Usage) Max(other Usage) Usage { return u.Plus(other.Beyond(u)) }

// Used is the usage of a handoff, over all of its attempts. Attempts has the reports of the current
// one, and of lost ones.
type Used struct {
	Usage
	Attempts []AttemptUsage `json:"attempts,omitempty"`
	// Others holds the usage of agents that do not have the handoff now.
	Others []UsedBy `json:"others,omitempty"`
}

// UsedBy is the usage of one agent.
type UsedBy struct {
	Agent string `json:"agent"`
	Usage
}

// usedByMax is how many agents' usage a state keeps apart. That of further agents is added to the
// last.
const usedByMax = 16

// ByAgent returns the usage of each agent; agent has the handoff, or had it last.
func (u *Used) ByAgent(agent string) []UsedBy {
	if u == nil || u.IsZero() {
		return nil
	}
	all, rest := slices.Clone(u.Others), u.own()
	if i := slices.IndexFunc(all, func(o UsedBy) bool { return o.Agent == agent }); i >= 0 {
		all[i].Usage = all[i].Plus(rest)
	} else if !rest.IsZero() {
		all = append(all, UsedBy{agent, rest})
	}
	return all
}

// own returns the usage of the agent that has the handoff.
func (u *Used) own() Usage {
	own := u.Usage
	for _, other := range u.Others {
		own = own.Beyond(other.Usage)
	}
	return own
}

// Leaves returns the usage after an agent has lost the handoff: its part is recorded under its
// name.
func (u *Used) Leaves(agent string) *Used {
	if u == nil || agent == "" {
		return u
	}
	return u.credit(agent, u.own())
}

// credit adds usage of an agent that does not have the handoff.
func (u *Used) credit(agent string, more Usage) *Used {
	if more.IsZero() {
		return u
	}
	next := *u
	next.Others = slices.Clone(u.Others)
	more.Model = ""
	i := slices.IndexFunc(next.Others, func(o UsedBy) bool { return o.Agent == agent })
	switch {
	case i < 0 && len(next.Others) < usedByMax:
		next.Others = append(next.Others, UsedBy{agent, more})
		return &next
	case i < 0:
		i = usedByMax - 1
	}
	next.Others[i].Usage = next.Others[i].Plus(more)
	return &next
}

// AttemptUsage is the reported usage of the attempt of a fence.
type AttemptUsage struct {
	Fence uint64 `json:"fence"`
	Usage
}

// Total returns the total usage; zero for nil.
func (u *Used) Total() Usage {
	if u == nil {
		return Usage{}
	}
	return u.Usage
}

// Said returns the reported usage of the attempt of a fence.
func (u *Used) Said(fence uint64) Usage {
	if u != nil {
		for _, a := range u.Attempts {
			if a.Fence == fence {
				return a.Usage
			}
		}
	}
	return Usage{}
}

// AddFor is Add for an attempt of an agent that does not have the handoff now.
func (u *Used) AddFor(agent string, fence uint64, report Usage) (*Used, Usage) {
	sum, more := u.Add(fence, report)
	if more.IsZero() || agent == "" {
		return sum, more
	}
	return sum.credit(agent, more), more
}

// Add returns the usage after a report of an attempt, and the increase by that report. The receiver
// stays unchanged.
func (u *Used) Add(fence uint64, report Usage) (*Used, Usage) {
	report.Normalize()
	said := u.Said(fence)
	more := report.Beyond(said)
	if more.IsZero() {
		return u, more
	}
	sum := &Used{Usage: u.Total().Plus(more)}
	if u != nil {
		sum.Others = u.Others
	}
	said = said.Plus(more)
	said.Model = ""
	sum.Attempts = append(u.without(fence), AttemptUsage{Fence: fence, Usage: said})
	sum.Attempts = sum.Attempts[max(0, len(sum.Attempts)-AttemptsUsageMax):]
	return sum, more
}

// Forget returns the usage without the attempt of a fence, which has ended and reports no more.
func (u *Used) Forget(fence uint64) *Used {
	if u == nil {
		return nil
	}
	return &Used{Usage: u.Usage, Attempts: u.without(fence), Others: u.Others}
}

// without returns the attempts except that of a fence, in a new slice.
func (u *Used) without(fence uint64) []AttemptUsage {
	if u == nil {
		return nil
	}
	return slices.DeleteFunc(slices.Clone(u.Attempts), func(a AttemptUsage) bool { return a.Fence == fence })
}

// BudgetLeft is the rest of the budgets that bound a handoff; nil is unbounded.
type BudgetLeft struct {
	Tokens     *int64 `json:"tokens,omitempty"`
	CostMicros *int64 `json:"cost_micros,omitempty"`
}

// Price is the price of an agent's model, in millionths of the fleet's currency per million tokens.
type Price struct {
	InMicros  int64 `json:"in_micros_per_mtok,omitempty" flag:"price-in" doc:"price of a million tokens that go into its model, as 3 or 0.25"`
	OutMicros int64 `json:"out_micros_per_mtok,omitempty" flag:"price-out" doc:"price of a million tokens that its model writes"`
}

func (p *Price) validate(field string) *Error {
	if p == nil {
		return nil
	}
	return cmp.Or(between(field+".in_micros_per_mtok", p.InMicros, 0, UsageMax), between(field+".out_micros_per_mtok", p.OutMicros, 0, UsageMax))
}

// Of returns a usage with its cost, if it has tokens and no cost. Tokens that may be input or
// output cost the higher price.
func (p *Price) Of(u Usage) Usage {
	if p == nil || u.CostMicros != 0 {
		return u
	}
	u.Normalize()
	rest := u.Tokens - u.TokensIn - u.TokensOut
	cost := float64(u.TokensIn)*float64(p.InMicros) + float64(u.TokensOut)*float64(p.OutMicros) + float64(rest)*float64(max(p.InMicros, p.OutMicros))
	u.CostMicros = int64(min(cost/1e6, UsageMax))
	return u
}

// Lineage is the sequence of hand-offs that led to a handoff, by which circles are detected.
//
// A handoff that follows from no other has no lineage. Escalations add no step: an escalation has
// the lineage of the handoff that it comes from, and so do a return and an answer.
type Lineage struct {
	Depth int    `json:"depth"`
	Hops  string `json:"hops"` // base64 of at most HopsMax entries of hopBytes, the newest last
	// Saved is base64 of a short hash of earlier hand-offs: the last whose number is a multiple of
	// savedFirst, the last whose number is a multiple of twice that, and so on. A ring of any length
	// passes one of them again, wherever the ring began.
	Saved string `json:"saved,omitempty"`

	// Again is how many hand-offs ago an identical one was made, if known; 0 is none. It is not
	// stored: such a hand-off is refused.
	Again int `json:"-"`
}

const (
	// HopsMax is how many different hand-offs a lineage remembers.
	HopsMax = 8
	// savedFirst is the number of the first hand-off whose hash a lineage saves.
	savedFirst = 4
	// hopBytes is the size of a hop: 3 bytes for each agent, 3 for the work, 4 for the context, the
	// number of the hand-off, and how often it was made. savedBytes is the size of a saved hash.
	hopBytes, agentHashBytes, workHashBytes, contextHashBytes, savedBytes = 15, 3, 3, 4, 6
)

// Hop is a hand-off of a lineage, in the order of its bytes there. Agents and contexts are identified
// by short hashes.
type Hop struct {
	From, To [agentHashBytes]byte
	Work     [workHashBytes]byte    // the task and its inputs
	Context  [contextHashBytes]byte // the same, plus the reason and the previous result
	Number   uint8                  // of the last such hand-off in its lineage, from 1
	Times    uint8                  // how often it was made with the same work
}

// NewHop returns the hop from an agent to a target, with a hash of the context (ContextHash). A
// target that is not an agent counts by its words.
func NewHop(from, to, context string) Hop {
	h := Hop{From: agentHash(from), To: agentHash(to), Times: 1}
	if sum, err := hex.DecodeString(context); err == nil {
		copy(h.Context[:], sum[copy(h.Work[:], sum):])
	}
	return h
}

func agentHash(agent string) (short [agentHashBytes]byte) {
	sum := sha256.Sum256([]byte(agent))
	copy(short[:], sum[:])
	return short
}

// Names reports whether an agent made or received the hop.
func (h Hop) Names(agent string) bool {
	short := agentHash(agent)
	return h.From == short || h.To == short
}

// sum returns the hash of a hop that a lineage saves.
func (h Hop) sum() []byte {
	sum := sha256.Sum256(slices.Concat(h.From[:], h.To[:], h.Work[:], h.Context[:]))
	return sum[:savedBytes]
}

// All returns the hops, newest last. Unreadable hops are skipped.
func (l *Lineage) All() []Hop {
	if l == nil {
		return nil
	}
	body, err := base64.StdEncoding.DecodeString(l.Hops)
	if err != nil {
		return nil
	}
	all := make([]Hop, len(body)/hopBytes)
	_, _ = binary.Decode(body, binary.BigEndian, all) // the body has their size
	return all
}

// Then returns the lineage after the hop. The oldest hop is dropped.
func (l *Lineage) Then(hop Hop) *Lineage {
	next := &Lineage{Depth: l.DepthOf() + 1}
	hop.Number = uint8(min(next.Depth, math.MaxUint8))
	all := l.All()
	if at := slices.IndexFunc(all, func(h Hop) bool { return h.From == hop.From && h.To == hop.To && h.Work == hop.Work }); at >= 0 {
		if before := all[at]; before.Context == hop.Context {
			next.Again = int(hop.Number - before.Number)
		}
		hop.Times += min(all[at].Times, math.MaxUint8-1)
		all = slices.Delete(all, at, at+1)
	}
	all = append(all, hop)
	all = all[max(0, len(all)-HopsMax):]
	body, _ := binary.Append(nil, binary.BigEndian, all) // of a fixed size
	next.Hops = base64.StdEncoding.EncodeToString(body)
	if next.Depth >= savedFirst {
		next.save(l, hop.sum())
	}
	return next
}

// save copies the saved hashes of the previous lineage, compares them with the last hand-off's, and
// stores that one in every place that is due. In a ring longer than half of savedFirst*2^k and not
// longer than that, a hand-off is saved within the first two rounds, and found in the next.
func (l *Lineage) save(before *Lineage, sum []byte) {
	var saved []byte
	if before != nil {
		saved, _ = base64.StdEncoding.DecodeString(before.Saved) // unreadable hashes start over
	}
	for at, each := 0, savedFirst; each <= l.Depth; at, each = at+savedBytes, 2*each {
		if at+savedBytes > len(saved) {
			saved = append(saved[:min(at, len(saved))], make([]byte, savedBytes)...)
		} else if last := (l.Depth - 1) / each * each; l.Again == 0 && bytes.Equal(saved[at:at+savedBytes], sum) {
			l.Again = l.Depth - last
		}
		if l.Depth%each == 0 {
			copy(saved[at:], sum)
		}
	}
	l.Saved = base64.StdEncoding.EncodeToString(saved)
}

// DepthOf returns the depth of a handoff in its lineage; 0 if it follows from no other.
func (l *Lineage) DepthOf() int {
	if l == nil {
		return 0
	}
	return l.Depth
}

// ContextHash returns a short hash of the work, and one of its context, in hex. Packages with the
// same hash ask for the same.
//
// The work is the task, variables, intermediate results, artifacts, decisions and steps; the
// context adds the reason and the previous result. Neither includes the conversation, summaries,
// metrics, times, and the tickets in a text: they change in each round of a loop, and prove
// nothing.
func (p *Package) ContextHash() string {
	c := &p.Context
	var artifacts [][3]string
	for _, a := range c.Artifacts.All() {
		artifacts = append(artifacts, [3]string{a.ID, a.Path, string(a.Status)})
	}
	var decisions, requirements []string
	for _, d := range c.Decisions {
		decisions = append(decisions, d.ID, d.Description)
	}
	for _, r := range p.Task.Requirements {
		requirements = append(requirements, withoutTickets(r))
	}
	work, err := Marshal([]any{withoutTickets(p.Task.Description), p.Task.Type, requirements, canonicalMap(c.Variables), canonicalMap(c.IntermediateResults),
		artifacts, decisions, canonicalList(c.CompletedSteps), canonicalList(c.RemainingSteps)})
	if err != nil { // values decoded from JSON have a JSON form
		return ""
	}
	sum := sha256.Sum256(work)
	whole := sha256.New()
	whole.Write(sum[:])
	texts := []string{p.Reason}
	if previous := c.Previous; previous != nil {
		texts = append(texts, previous.Summary, string(previous.Body), previous.BodyDigest)
	}
	for _, text := range texts {
		text = withoutTickets(text)
		whole.Write(binary.BigEndian.AppendUint64(nil, uint64(len(text))))
		whole.Write([]byte(text))
	}
	return hex.EncodeToString(whole.Sum(sum[:workHashBytes])[:workHashBytes+contextHashBytes])
}

// withoutTickets returns a text without the tickets in it.
func withoutTickets(text string) string {
	var cut strings.Builder
	from := 0
	for i := 0; i+ticketBytes <= len(text); i++ {
		if text[i+8] != '-' || text[i+13] != '-' {
			continue
		}
		if _, err := ParseTicket(text[i : i+ticketBytes]); err == nil {
			cut.WriteString(text[from:i])
			from = i + ticketBytes
			i = from - 1
		}
	}
	if from == 0 {
		return text
	}
	return cut.String() + text[from:]
}

func canonicalMap(all map[string]json.RawMessage) map[string]any {
	sorted := make(map[string]any, len(all))
	for name, raw := range all {
		sorted[name] = canonical(raw)
	}
	return sorted
}

func canonicalList(all []json.RawMessage) []any {
	list := make([]any, len(all))
	for i, raw := range all {
		list[i] = canonical(raw)
	}
	return list
}

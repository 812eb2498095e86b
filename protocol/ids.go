package protocol

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/google/uuid"

	"github.com/agenthandoff/handoff/internal/wirejson"
)

// IDBytesMax is the longest agent id, or other subject token.
const IDBytesMax = 64

// ticketBytes is the length of a ticket.
const ticketBytes = 36

// ticketSpace is the namespace of tickets that are derived from a key.
var ticketSpace = uuid.NewSHA1(uuid.NameSpaceURL, []byte("https://github.com/agenthandoff/handoff/ticket"))

// NewTicket returns a random ticket (UUIDv4). Promised or repeated handoffs have a derived one
// (UUIDv5), so that a crash in between is harmless.
func NewTicket() string { return uuid.NewString() }

// TicketForKey returns the ticket of an idempotency key: the UUIDv5 of source and key.
func TicketForKey(source, key string) string {
	return uuid.NewSHA1(ticketSpace, []byte(source+"\x00"+key)).String()
}

// Every name below has two NULs, that of a key one: an agent's name may look like a ticket, and
// must not be able to produce a ticket that is derived from that one.

// ChildTicketN returns the ticket of a parent's child with this ordinal, from 0.
func ChildTicketN(parent string, n int) string {
	return uuid.NewSHA1(ticketSpace, []byte(parent+"\x00ordinal\x00"+strconv.Itoa(n))).String()
}

// CallTicket returns the ticket of the call for bids to the n-th asked agent, from 0.
func CallTicket(ticket string, n int) string {
	return uuid.NewSHA1(ticketSpace, []byte(ticket+"\x00call\x00"+strconv.Itoa(n))).String()
}

// ReturnTicket returns the ticket of the handoff that delivers a handoff's return.
func ReturnTicket(ticket string) string {
	return uuid.NewSHA1(ticketSpace, []byte(ticket+"\x00return\x00")).String()
}

// RedriveTicket returns the ticket under which a closed handoff is submitted again.
func RedriveTicket(origin string) string {
	return uuid.NewSHA1(ticketSpace, []byte(origin+"\x00redrive\x00")).String()
}

// ParseTicket reads a ticket: any RFC 9562 UUID in its hyphenated form. It returns the canonical,
// lower-case form.
func ParseTicket(s string) (string, error) {
	if len(s) != ticketBytes {
		return "", Errorf(CodeInvalid, "ticket", "%q is not a ticket; a ticket is the UUID that a submission returns", wirejson.Clip(s))
	}
	id, err := uuid.Parse(s)
	if err != nil {
		return "", Errorf(CodeInvalid, "ticket", "%q is not a ticket; a ticket is the UUID that a submission returns", wirejson.Clip(s))
	}
	text, _ := id.MarshalText() // it does not fail, and stays on the stack
	if string(text) == s {
		return s, nil
	}
	return string(text), nil
}

// CheckID checks an agent id or another subject token: 1 to 64 of A-Z a-z 0-9 _ and -.
func CheckID(field, s string) error {
	if s == "" {
		return Errorf(CodeMissing, field, "is missing or empty")
	}
	if len(s) > IDBytesMax {
		return Errorf(CodeInvalid, field, "is %d bytes long, at most %d are allowed", len(s), IDBytesMax)
	}
	if i := strings.IndexFunc(s, notIDRune); i >= 0 {
		return Errorf(CodeInvalid, field, "%s has a character at byte %d that is not one of A-Z a-z 0-9 _ -", strconv.QuoteToASCII(s), i)
	}
	return nil
}

func notIDRune(r rune) bool {
	return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '_' || r == '-')
}

const (
	// editsMax is how many edits may separate two similar names: a slip or two.
	editsMax = 2
	// nearestMax is how many names Nearest returns.
	nearestMax = 3
)

// Nearest returns the known names that an unknown name may mean, nearest first. A known name that
// begins with it is as near as one slip.
func Nearest(name string, known []string) []string {
	type candidate struct {
		name  string
		edits int
	}
	var near []candidate
	for _, k := range known {
		most := min(editsMax, len(k)/2)
		n := wirejson.Edits(name, k)
		if len(name) > editsMax && strings.HasPrefix(k, name) {
			n = min(n, 1)
		}
		if n <= most {
			near = append(near, candidate{k, n})
		}
	}
	slices.SortFunc(near, func(x, y candidate) int {
		return cmp.Or(cmp.Compare(x.edits, y.edits), strings.Compare(x.name, y.name))
	})
	var names []string
	for _, c := range near[:min(len(near), nearestMax)] {
		names = append(names, c.name)
	}
	return names
}

// The allowed words of fields, each list in the order of the documents. The JSON Schemas have the
// same lists.
var (
	Types            = []Type{Sequential, Delegation, Broadcast, Escalation}
	Triggers         = []Trigger{TriggerTaskCompletion, TriggerCapabilityMismatch, TriggerEscalation, TriggerTimeout, TriggerExplicitRequest}
	Risks            = []Risk{RiskLow, RiskMedium, RiskHigh}
	TransferModes    = []TransferMode{TransferFull, TransferSummary, TransferRelevantOnly, TransferReference}
	SummaryBys       = []SummaryBy{SummaryBySource, SummaryByExtract, SummaryByCommand, SummaryByModel}
	ApprovalTimeouts = []ApprovalTimeout{ApprovalEscalate, ApprovalClose}
	OnTimeouts       = []OnTimeout{OnTimeoutRetry, OnTimeoutEscalate, OnTimeoutFail}
	OnNoTakers       = []OnNoTaker{NoTakerEscalate, NoTakerQueue, NoTakerReturn, NoTakerClose}
	LateResults      = []LateResult{LateIgnore, LateUse}
	OnDeadlines      = []OnDeadline{DeadlineEscalate, DeadlineClose}
	OnExhausteds     = []OnExhausted{ExhaustedEscalate, ExhaustedFail}
	OnMalformeds     = []OnMalformed{MalformedFail, MalformedRetry}
	Aggregations     = []Aggregation{AggregateAll, AggregateAny, AggregateMajority}
	Outcomes         = []Outcome{OutcomeSuccess, OutcomePartial, OutcomeFailed, OutcomeTimeout, OutcomeRejected, OutcomeCancelled, OutcomeRolledBack}
	Clocks           = []Clock{ClockAcknowledge, ClockQueue, ClockWork, ClockProgress, ClockCondition, ClockReturn, ClockDeadline} // those that can run out
	ReturnStatuses   = []ReturnStatus{ReturnSuccess, ReturnPartial, ReturnFailed, ReturnTimeout}
	ResultStatuses   = []ResultStatus{Success, Partial}
	ContentTypes     = []string{ContentText, ContentJSON, ContentArtifact}
	AckStatuses      = []AckStatus{AckAccepted, AckRejected, AckConditional}
	ReturnScopes     = []ReturnScope{ReturnOfChain, ReturnOfHandoff}
	Waits            = []string{WaitBlock, WaitContinue} // of a return
	BudgetActions    = []BudgetAction{BudgetReturn, BudgetAsk}
	Complexities     = []string{"simple", "medium", "complex"}
	Classifiers      = []Classifier{ClassifiedByCommand, ClassifiedByModel}
	LockTypes        = []string{"exclusive", "shared"}
	ArtifactStatuses = []string{"draft", "final", "superseded"}
)

// How a source waits for a return.
const (
	WaitBlock    = "block"
	WaitContinue = "continue"
	// WaitSlot is Summary.Wait of a child for which its parent's program keeps its slot.
	WaitSlot = "slot"
)

// Printable makes text from outside safe for one line of a terminal. Control characters (the
// building blocks of terminal escapes), invalid UTF-8, and characters that are invisible or change
// the writing direction are written as \x1b or \u202e. A line break becomes ⏎, a tab a space.
func Printable(s string) string { return printable(s, false) }

// PrintableLines is Printable, but keeps line breaks and tabs.
func PrintableLines(s string) string { return printable(s, true) }

func printable(s string, lines bool) string {
	if !suspect(s) {
		return s
	}
	var b strings.Builder
	for i := 0; i < len(s); {
		r, n := utf8.DecodeRuneInString(s[i:])
		switch {
		case r == utf8.RuneError && n <= 1:
			fmt.Fprintf(&b, `\x%02x`, s[i])
		case (r == '\n' || r == '\t') && lines:
			b.WriteRune(r)
		case r == '\r' && strings.HasPrefix(s[i+1:], "\n"): // part of a line break
		case r == '\n':
			b.WriteRune('⏎')
		case r == '\t':
			b.WriteByte(' ')
		case !hidden(r):
			b.WriteRune(r)
		case r < 0x80:
			fmt.Fprintf(&b, `\x%02x`, r)
		case r > 0xffff:
			fmt.Fprintf(&b, `\U%08x`, r)
		default:
			fmt.Fprintf(&b, `\u%04x`, r)
		}
		i += n
	}
	return b.String()
}

// suspect reports whether s has characters outside of plain ASCII.
func suspect(s string) bool {
	for i := range len(s) {
		if s[i] < ' ' || s[i] > '~' {
			return true
		}
	}
	return false
}

// hidden reports whether a character controls the terminal or is invisible: controls (C0, C1),
// format characters (bidirectional overrides, zero-width ones, tags), line and paragraph
// separators.
func hidden(r rune) bool {
	switch {
	case r == '\u200c' || r == '\u200d': // joiners: scripts and emoji need them
		return false
	case r >= '\u0600' && r <= '\u08e2' && r != '\u061c': // visible signs of that class
		return unicode.Is(unicode.Cc, r)
	}
	return unicode.In(r, unicode.Cc, unicode.Cf, unicode.Zl, unicode.Zp)
}

// CutText bounds a text for an event: at most so many bytes, cut between characters, with … at the
// cut. Invalid UTF-8 and NUL, which the wire refuses, become U+FFFD.
func CutText(s string, bytesMax int) string { return wirejson.CutText(s, bytesMax) }

// Prefix returns the beginning of a text: at most so many bytes, cut between characters.
func Prefix(s string, bytesMax int) string { return wirejson.Prefix(s, bytesMax) }

// reservedNames are the names of Handoff's parts and environment in events, subjects and logs. An
// agent with such a name, in any case, would be mistaken for that part: an event by "supervisor" is
// a decision of the supervisors.
var reservedNames = []string{System, "supervisor", "holder", "system", "operator", "engine", "gateway", "door", ScheduleSource, SignalSource}

// reserved reports whether a name, in any case, is reserved for a part of Handoff. An agent may be
// named Human; any other spelling of it is reserved.
func reserved(name string) bool {
	for _, reserved := range reservedNames {
		if strings.EqualFold(name, reserved) {
			return true
		}
	}
	return name != Human && strings.EqualFold(name, Human)
}

// CheckAgent is CheckID for the name of an agent, which must not be reserved.
func CheckAgent(field, name string) error {
	return cmp.Or(CheckID(field, name), CheckBy(field, name))
}

// CheckBy refuses a reserved name for the author of an act. A person has any other name, or none.
func CheckBy(field, name string) error {
	if reserved(name) {
		return Errorf(CodeReserved, field, "%s is a reserved name: no agent or person may have it, in any case", name)
	}
	return nil
}

package index

import (
	"database/sql"
	"encoding/json"
	"slices"

	"github.com/agenthandoff/handoff/protocol"
)

const (
	barRowsMax   = 32 // codes and targets of a handoff whose barred hand-offs are counted apart
	gateWaitsMax = 32 // waits of a handoff at one kind of gate that are kept
)

// governance has the gates, limits and deadlocks of a row.
type governance struct {
	gate     int   // before its next offer; 0 is none
	gated    int64 // since when
	governed governed
}

// governed has the effects of gates, limits and deadlocks on a handoff. Most handoffs have none.
type governed struct {
	Barred    []barRow    `json:"b,omitempty"`
	Gates     []gateRow   `json:"g,omitempty"`
	Deadlocks int64       `json:"d,omitempty"`
	Account   *accountRow `json:"a,omitempty"`
}

// barRow counts the hand-offs to a target that were refused with a code.
type barRow struct {
	Code string `json:"c"`
	To   string `json:"t,omitempty"`
	N    int64  `json:"n"`
}

// gateRow counts how one kind of gate ended for a handoff.
type gateRow struct {
	Kind   int     `json:"k"`
	Passed int64   `json:"p,omitempty"`
	Denied int64   `json:"d,omitempty"`
	Lapsed int64   `json:"l,omitempty"`
	Ended  int64   `json:"e,omitempty"` // the handoff closed meanwhile
	Waits  []int64 `json:"w,omitempty"` // ms, of those that are over
}

// accountRow is the account of a handoff, by protocol.Dimensions; nil is a dimension without a
// limit.
type accountRow struct {
	Dimensions [4]*balance `json:"x"`
	// First reports that no other handoff has this one in its account.
	First bool `json:"f,omitempty"`
}

type balance struct {
	Granted  int64 `json:"g,omitempty"`
	Used     int64 `json:"u,omitempty"` // by it and all below
	Reserved int64 `json:"r,omitempty"` // for handoffs below that are open
	Over     int64 `json:"o,omitempty"`
}

// gateOf returns the gate before a handoff's next offer. The state has no gate where all breakers were
// open at the submission: such a handoff has no agent and no offer yet.
func gateOf(s protocol.State) protocol.GateKind {
	if s.Phase == protocol.Pending && s.Offer == 0 && s.Agent == "" && s.Aggregate == nil && !s.Held() {
		return protocol.GateBreaker
	}
	return s.Gate.First()
}

// accountOf returns the part of an account that the index keeps; nil is none.
func accountOf(s protocol.State) *accountRow {
	if s.Account == nil || s.Limits == nil {
		return nil
	}
	row, any := &accountRow{First: s.Parent == "" && s.Group == "" && s.ReturnOf == ""}, false
	for i, name := range protocol.Dimensions {
		if limit, bounded := s.Limits.Of(name); bounded {
			a := s.Account
			row.Dimensions[i] = &balance{limit + a.Raised.Of(name), a.Used.Of(name) + a.Spent.Of(name), a.Reserved.Of(name), a.Over.Of(name)}
			any = true
		}
	}
	if !any {
		return nil
	}
	return row
}

// govern adds an event to the governance of its row; false is that the event is no such one.
func (g *governance) govern(o observation) bool {
	kind := gates.number(protocol.GateKind(o.reason))
	switch o.kind {
	case protocol.EventGated:
		g.gate, g.gated = kind, o.at
	case protocol.EventGateOpened, protocol.EventApproved, protocol.EventAwarded:
		if row := g.leave(kind, o.at); row != nil {
			row.Passed++
		}
		g.gated = o.at // if another gate follows it
	case protocol.EventDenied, protocol.EventUnawarded:
		if row := g.leave(kind, o.at); row != nil {
			row.Denied++
		}
	case protocol.EventLapsed:
		g.governed.gateRow(kind).Lapsed++
	case protocol.EventBarred:
		if g.governed.bar(o.reason, o.to); protocol.Code(o.reason) == protocol.CodeCircular {
			g.governed.Deadlocks++
		}
	case protocol.EventDeadlocked:
		g.governed.Deadlocks++
	default:
		return false
	}
	return true
}

// leave ends the wait at a gate, and returns its row; nil is that the row does not know the wait,
// as its first entries are gone from the ledger.
func (g *governance) leave(kind int, at int64) *gateRow {
	if g.gate != 0 && g.gate != kind || g.gated == 0 {
		return nil
	}
	row := g.governed.gateRow(kind)
	if len(row.Waits) < gateWaitsMax {
		row.Waits = append(row.Waits, max(0, at-g.gated)/1000)
	}
	g.gate = 0
	return row
}

// settle sets the gate to that of the state after a step.
func (g *governance) settle(s *step) {
	a := &s.after
	if a.gate == 0 && g.gate != 0 {
		breaker := gates.word(g.gate) == protocol.GateBreaker // no event opens that one
		switch row := g.leave(g.gate, a.updated); {
		case row == nil:
		case a.lapsed:
			row.Lapsed++
		case breaker && a.outcome == 0:
			row.Passed++
		default:
			row.Ended++
		}
	}
	if g.gate = a.gate; g.gate == 0 {
		g.gated = 0
	} else if g.gated == 0 {
		g.gated = a.updated
	}
	g.governed.Account = a.account
}

func (g *governed) gateRow(kind int) *gateRow {
	i := slices.IndexFunc(g.Gates, func(r gateRow) bool { return r.Kind == kind })
	if i < 0 {
		i, g.Gates = len(g.Gates), append(g.Gates, gateRow{Kind: kind})
	}
	return &g.Gates[i]
}

func (g *governed) bar(code, to string) {
	i := slices.IndexFunc(g.Barred, func(r barRow) bool { return r.Code == code && r.To == to })
	switch {
	case i >= 0:
		g.Barred[i].N++
	case len(g.Barred) < barRowsMax:
		g.Barred = append(g.Barred, barRow{code, to, 1})
	}
}

// The marks of a row, as bits.
const (
	markBarred = 1 << iota
	markDeadlocked
)

func (g *governed) marks() (marks int) {
	if len(g.Barred) > 0 {
		marks |= markBarred
	}
	if g.Deadlocks > 0 {
		marks |= markDeadlocked
	}
	return marks
}

// column is the value of the column governed.
func (g *governed) column() any {
	if len(g.Barred) == 0 && len(g.Gates) == 0 && g.Deadlocks == 0 && g.Account == nil {
		return nil
	}
	return jsonText(g)
}

func parseGoverned(column sql.NullString) (g governed, err error) {
	if column.Valid {
		err = json.Unmarshal([]byte(column.String), &g)
	}
	return g, err
}

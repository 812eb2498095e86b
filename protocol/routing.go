package protocol

import (
	"fmt"
	"slices"
)

// OnOpen is what becomes of a submission that no agent can be given now: the breaker of its agent is
// open, or no agent has the name or the capability.
type OnOpen string

const (
	OnOpenRefuse OnOpen = "refuse" // it is refused (CodeBreakerOpen, CodeUnknownAgent, CodeNoAgent); the default
	OnOpenWait   OnOpen = "wait"   // it is submitted, and offered as soon as an agent may have it
)

// OnOpens are all values of OnOpen.
var OnOpens = []OnOpen{OnOpenRefuse, OnOpenWait}

// RouteBy is how an agent is chosen among those that have what a package requires.
type RouteBy string

const (
	RouteByFit     RouteBy = "fit"     // the fittest, then the one with the most room; the default
	RouteByLoad    RouteBy = "load"    // the same, and equal ones by the ticket
	RouteBySuccess RouteBy = "success" // the fittest that failed the least of late, then as by load
)

// RouteBys are all values of RouteBy.
var RouteBys = []RouteBy{RouteByFit, RouteByLoad, RouteBySuccess}

// RoutingRules are what a package says of its way to an agent.
type RoutingRules struct {
	OnOpen OnOpen `json:"on_open,omitempty"` // while the breaker of its agent is open
	// OnUnknown is for a target that no agent is, or has, yet. A group does not wait: each of its
	// members would.
	OnUnknown OnOpen  `json:"on_unknown,omitempty"`
	By        RouteBy `json:"by,omitempty"` // absent is what the fleet says
	// Ranked are the agents that may have it where the one that it names does not, the best first.
	Ranked []string `json:"ranked,omitempty"`
}

// FleetRouting is how agents are chosen where a package does not say it.
type FleetRouting struct {
	By RouteBy `json:"by,omitempty"`
}

func (r *RoutingRules) validate(target Target, group bool) *Error {
	if r == nil {
		return nil
	}
	if err := oneOf("routing.on_unknown", r.OnUnknown, OnOpens); err != nil {
		return err
	}
	if group && r.OnUnknown == OnOpenWait {
		return Errorf(CodeConflict, "routing.on_unknown", "does not go with a group: name agents that there are")
	}
	if err := oneOf("routing.on_open", r.OnOpen, OnOpens); err != nil {
		return err
	}
	if err := oneOf("routing.by", r.By, RouteBys); err != nil {
		return err
	}
	const field = "routing.ranked"
	if len(r.Ranked) > RankedMax {
		return Errorf(CodeTooLarge, field, "has %d agents, at most %d are allowed", len(r.Ranked), RankedMax)
	}
	if len(r.Ranked) > 0 && target.Capability != "" {
		return Errorf(CodeConflict, field, "does not go with target.capability: who has the capability is chosen anew")
	}
	for i, agent := range r.Ranked {
		at := fmt.Sprintf("%s[%d]", field, i)
		if err := checkID(at, agent); err != nil {
			return err
		}
		if slices.Contains(r.Ranked[:i], agent) {
			return Errorf(CodeConflict, at, "names %s twice", agent)
		}
	}
	return nil
}

// summarize puts what the core needs of the rules into a summary.
func (r *RoutingRules) summarize(s *Summary) {
	if r == nil {
		return
	}
	if s.RouteBy, s.Ranked = r.By, r.Ranked; r.OnOpen != OnOpenRefuse {
		s.OnOpen = r.OnOpen
	}
	if r.OnUnknown != OnOpenRefuse {
		s.OnUnknown = r.OnUnknown
	}
}

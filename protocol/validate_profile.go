package protocol

import "fmt"

// Validate checks a profile: its ids, capabilities and limits.
func (p Profile) Validate() error {
	if err := p.validate(); err != nil {
		return err
	}
	return nil
}

func (p *Profile) validate() *Error {
	if err := checkAgent("id", p.ID); err != nil {
		return err
	}
	if err := checkName("name", p.Name); err != nil {
		return err
	}
	if err := optionalID("specialization", p.Specialization); err != nil {
		return err
	}
	if err := checkCapabilities(p.Capabilities); err != nil {
		return err
	}
	if n := len(p.Examples); n > ExamplesMax {
		return Errorf(CodeTooLarge, "examples", "lists %d examples, at most %d are allowed", n, ExamplesMax)
	}
	if err := between("max_concurrency", int64(p.MaxConcurrency), 0, ConcurrencyMax); err != nil {
		return err
	}
	if err := between("max_execution_time_ms", p.MaxExecutionMS, 0, WorkTimeoutMaxMS); err != nil {
		return err
	}
	if err := p.Price.validate("price"); err != nil {
		return err
	}
	if err := oneOf("max_risk", p.MaxRisk, Risks); err != nil {
		return err
	}
	if err := optionalAgent("escalates_to", p.EscalatesTo); err != nil {
		return err
	}
	if p.EscalatesTo == p.ID {
		return Errorf(CodeConflict, "escalates_to", "is the agent itself")
	}
	if err := p.validateEdges(); err != nil {
		return err
	}
	if p.PollPatienceMS != 0 {
		if err := between("poll_patience_ms", p.PollPatienceMS, PollPatienceMinMS, PollPatienceMaxMS); err != nil {
			return err
		}
	}
	if err := checkAmount("autonomy_budget", p.AutonomyBudget); err != nil {
		return err
	}
	if err := oneOf("approve", p.Approve, Approves); err != nil {
		return err
	}
	if err := p.Policy.validate("policy"); err != nil {
		return err
	}
	if err := checkPatterns("scopes", p.Scopes); err != nil {
		return err
	}
	if err := p.Breaker.validate("breaker"); err != nil {
		return err
	}
	if err := p.Contract.validate("contract"); err != nil {
		return err
	}
	if err := between("max_context_tokens", int64(p.MaxContextTokens), 0, TokensMax); err != nil {
		return err
	}
	if err := wellFormed(profileShape, p); err != nil {
		return err
	}
	return p.checkSize()
}

func (p *Profile) validateEdges() *Error {
	if err := checkPatterns("hands_to", p.HandsTo); err != nil {
		return err
	}
	if err := checkPatterns("accepts_from", p.AcceptsFrom); err != nil {
		return err
	}
	if err := oneOf("handoffs", p.Handoffs, HandoffModes); err != nil {
		return err
	}
	return oneOf("on_barred", p.OnBarred, BarredModes)
}

func (p *Profile) checkSize() *Error {
	body, err := Marshal(p)
	if err != nil {
		return Errorf(CodeMalformed, "profile", "cannot be written: %v", err)
	}
	if len(body) > ProfileBytesMax {
		return tooLarge("profile", len(body), ProfileBytesMax)
	}
	return nil
}

func checkCapabilities(list []Capability) *Error {
	if len(list) > CapabilitiesMax {
		return Errorf(CodeTooLarge, "capabilities", "lists %d capabilities, at most %d are allowed", len(list), CapabilitiesMax)
	}
	seen := make(map[string]bool, len(list))
	for i, c := range list {
		field := fmt.Sprintf("capabilities[%d]", i)
		if err := checkID(field+".id", c.ID); err != nil {
			return err
		}
		if err := checkProficiency(field+".proficiency", c.Proficiency); err != nil {
			return err
		}
		if seen[c.ID] {
			return Errorf(CodeConflict, field+".id", "names %s a second time", c.ID)
		}
		seen[c.ID] = true
	}
	return nil
}

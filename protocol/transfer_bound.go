package protocol

// CutFor cuts the conversation to an agent's max_context_tokens. It tells whether it was over them,
// and is pure, as CutConversation is. Where the package names no mode the conversation is cut in
// the one of its type, or in the first that the agent's contract has.
func (p *Package) CutFor(agent *Profile) bool {
	c := &p.Context
	most, t := agent.MaxContextTokens, &c.HistoryTransfer
	if most <= 0 || ConversationTokens(c.ConversationHistory) <= most {
		return false
	}
	if t.Mode == "" {
		t.Mode = c.acceptedMode(agent.Contract, p.Type.Transfer())
	}
	if t.MaxTokens <= 0 || t.MaxTokens > most {
		t.MaxTokens = most
	}
	p.CutConversation()
	return true
}

// AdaptMode changes the mode of a package to the first of a contract that does not have it. It is for
// packages that took the mode of their type.
func (p *Package) AdaptMode(to *Contract) {
	c := &p.Context
	if len(c.ConversationHistory) > 0 && !to.Accepts(c.HistoryTransfer.Mode) {
		c.HistoryTransfer.Mode = c.acceptedMode(to, c.HistoryTransfer.Mode)
		p.CutConversation()
	}
}

// acceptedMode is a mode where a contract has it, else the first that it has. A transfer by reference
// needs a place to refer to.
func (c *Context) acceptedMode(of *Contract, mode TransferMode) TransferMode {
	if of.Accepts(mode) {
		return mode
	}
	for _, other := range of.Modes {
		if other != TransferReference || c.ContextURL != "" {
			return other
		}
	}
	return mode // which the contract refuses
}

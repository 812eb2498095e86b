package cli

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/agenthandoff/handoff/protocol"
)

// contractFlags say what an agent expects of a package, and what it provides.
type contractFlags struct{ context, result string }

func (f *profileFlags) declareContract() {
	f.fs.StringVar(&f.contract.context, "context-schema", "", "what it expects: the JSON Schema of the context of a package is in this `FILE`, or on stdin with - ('' for none again)")
	f.fs.StringVar(&f.contract.result, "result-schema", "", "what it provides: the JSON Schema of its results, where a package has none, is in this `FILE`, or on stdin with - ('' for none again)")
	modes := f.fs.StringArray("takes-transfer", nil, "a `WAY` in which a conversation may come: full, relevant_only, summary or reference (repeatable; default all; '' for all again)")
	f.onGiven("takes-transfer", func(p *protocol.Profile) {
		list := []protocol.TransferMode{}
		for _, mode := range *modes {
			if mode != "" || len(*modes) > 1 {
				list = append(list, protocol.TransferMode(mode))
			}
		}
		setContract(p, func(c *protocol.Contract) { c.Modes = list })
	})
	most := f.fs.Int("max-context-tokens", 0, "how much of a conversation it gets at most, in tokens, as estimated (0: all of it)")
	f.onGiven("max-context-tokens", func(p *protocol.Profile) { p.MaxContextTokens = *most })
}

// readContract reads the schemas that are given as files.
func (f *profileFlags) readContract(p *protocol.Profile, a *app) error {
	for _, of := range []struct {
		flag, file, name string
		set              func(to, read *protocol.Contract)
	}{
		{"context-schema", f.contract.context, "context_schema", func(to, read *protocol.Contract) { to.ContextSchema = read.ContextSchema }},
		{"result-schema", f.contract.result, "result_schema", func(to, read *protocol.Contract) { to.ResultSchema = read.ResultSchema }},
	} {
		if !f.fs.Changed(of.flag) {
			continue
		}
		body := []byte("null")
		if of.file != "" {
			var err error
			if body, err = a.read(of.file); err != nil {
				return err
			}
		}
		read, err := protocol.DecodeProfile(fmt.Appendf(nil, `{"contract":{%q:%s}}`, of.name, body))
		if err != nil {
			return err
		}
		if read.Contract == nil || of.file == "" {
			read.Contract = &protocol.Contract{}
		}
		setContract(p, func(c *protocol.Contract) { of.set(c, read.Contract) })
	}
	return nil
}

// setContract changes a copy of the contract. Without a part a profile has none.
func setContract(p *protocol.Profile, change func(*protocol.Contract)) {
	var next protocol.Contract
	if p.Contract != nil {
		next = *p.Contract
	}
	change(&next)
	if p.Contract = &next; len(next.ContextSchema) == 0 && len(next.ResultSchema) == 0 && len(next.Modes) == 0 {
		p.Contract = nil
	}
}

// contractWords are what an agent expects, what it provides, and how a conversation comes.
func contractWords(p *protocol.Profile) (expects, provides, conversation string) {
	var parts []string
	if c := p.Contract; c != nil {
		if expects = strings.Join(c.Expects(), ", "); expects == "" {
			expects = schemaWords(c.ContextSchema)
		}
		provides = schemaWords(c.ResultSchema)
		if len(c.Modes) > 0 {
			parts = append(parts, strings.Join(asWords(c.Modes), ", "))
		}
	}
	if p.MaxContextTokens > 0 {
		parts = append(parts, fmt.Sprintf("at most %d tokens", p.MaxContextTokens))
	}
	return expects, provides, strings.Join(parts, "; ")
}

func schemaWords(raw json.RawMessage) string {
	if len(raw) == 0 {
		return ""
	}
	return fmt.Sprintf("by a schema of %d bytes", len(raw))
}

package cli

import (
	"cmp"
	"context"
	"time"

	"github.com/agenthandoff/handoff/protocol"
)

// build makes the package. What it says is for the package's own validation to
// judge; here only what cannot be read is refused.
func (f *packageFlags) build(ctx context.Context, a *app, now time.Time) (protocol.Package, error) {
	var pkg protocol.Package
	if f.file != "" {
		body, err := a.read(f.file)
		if err != nil {
			return pkg, err
		}
		if pkg, err = protocol.DecodePackage(body); err != nil {
			return pkg, err
		}
	}
	return f.complete(ctx, pkg, a, now)
}

// complete lays the flags over what a file says.
func (f *packageFlags) complete(ctx context.Context, pkg protocol.Package, a *app, now time.Time) (protocol.Package, error) {
	f.ends(&pkg, a.env)
	if err := f.files(&pkg, a); err != nil {
		return pkg, err
	}
	f.setGiven(&pkg)
	if err := f.notEmpty(&pkg); err != nil {
		return pkg, err
	}
	if err := f.setDeadline(&pkg, now); err != nil {
		return pkg, err
	}
	if err := addVariables(&pkg.Context.Variables, "--var", f.variables); err != nil {
		return pkg, err
	}
	if err := addArtifacts(&pkg.Context.Artifacts, f.artifacts); err != nil {
		return pkg, err
	}
	for _, text := range f.requires {
		id, level, _, err := parseLevel("--requires", text)
		if err != nil {
			return pkg, err
		}
		pkg.RequiredCapabilities = append(pkg.RequiredCapabilities, protocol.RequiredCapability{ID: id, MinProficiency: level})
	}
	for i, text := range f.next {
		rule, err := parseRule(text)
		if err != nil {
			return pkg, err
		}
		if i == 0 {
			pkg.Next = nil // those of a file
		}
		pkg.Next = append(pkg.Next, rule)
	}
	if err := applyPolicies(&pkg.Policy, f.policies); err != nil {
		return pkg, err
	}
	return pkg, f.cutConversation(ctx, &pkg, a)
}

// ends sets source, target, parent and trace.
func (f *packageFlags) ends(pkg *protocol.Package, env func(string) string) {
	changed := f.fs.Changed
	agent, ticket := workedOn(env)
	switch {
	case changed("from"):
		pkg.Source = f.from
	case pkg.Source == "":
		pkg.Source = cmp.Or(agent, protocol.Human)
	}
	if changed("to") || changed("capability") || changed("group") {
		pkg.Target = protocol.Target{Capability: f.capability}
	}
	switch len(f.to) {
	case 0:
	case 1:
		pkg.Target.Agent = f.to[0]
	default:
		pkg.Target.Agents = f.to
		if pkg.Type == "" && !changed("type") {
			pkg.Type = protocol.Broadcast
		}
	}
	switch {
	case changed("parent"):
		pkg.Parent = f.parent
	case pkg.Parent == "":
		pkg.Parent = ticket
	}
	traceOf(pkg, env)
}

// files reads the parts of the package that lie in files of their own.
func (f *packageFlags) files(pkg *protocol.Package, a *app) error {
	for _, of := range []struct {
		file, before, after string
		set                 func(part protocol.Package)
	}{
		{f.contextFile, `{"context":`, `}`, func(part protocol.Package) { pkg.Context = part.Context }},
		{f.transfer.historyFile, `{"context":{"conversation_history":`, `}}`, func(part protocol.Package) { pkg.Context.ConversationHistory = part.Context.ConversationHistory }},
		{f.groupFile, `{"members":`, `}`, func(part protocol.Package) { pkg.Members = part.Members }},
		{f.schemaFile, `{"expectations":{"output_schema":`, `}}`, func(part protocol.Package) { pkg.Expectations.OutputSchema = part.Expectations.OutputSchema }},
	} {
		if of.file == "" {
			continue
		}
		part, err := a.readPart(of.file, of.before, of.after)
		if err != nil {
			return err
		}
		of.set(part)
	}
	return nil
}

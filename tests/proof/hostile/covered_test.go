//go:build proof

package hostile

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/nats-io/nats.go/jetstream"

	handoffjs "github.com/agenthandoff/handoff/internal/jetstream"
)

// covered tells whether a kind sends junk there.
func covered(subject string) bool {
	return slices.ContainsFunc(kinds, func(k kind) bool {
		return slices.ContainsFunc(k.covers, func(of string) bool { return strings.HasPrefix(subject, of) || strings.HasPrefix(of, subject) })
	})
}

// coveredElsewhere are subjects that another test sends junk to, or that the engine reads.
var coveredElsewhere = []string{"handoff.ledger.", "$JS.API."}

// streams fails where a stream of the engine has a subject that nothing is sent to.
func (w *world) streams() {
	w.t.Helper()
	js, err := jetstream.New(w.nc)
	if err != nil {
		w.t.Fatal(err)
	}
	for _, name := range handoffjs.Streams {
		stream, err := js.Stream(w.ctx, name)
		if err != nil {
			w.t.Fatal(err)
		}
		for _, subject := range stream.CachedInfo().Config.Subjects {
			if subject = strings.TrimSuffix(subject, ">"); !covered(subject) && !slices.Contains(coveredElsewhere, subject) {
				w.t.Errorf("nothing is sent to %s of %s: give it a kind", subject, name)
			}
		}
	}
}

// TestSubjectsAreCovered fails where the code names a subject that nothing is sent to.
func TestSubjectsAreCovered(t *testing.T) {
	subject := regexp.MustCompile(`^"((?:handoff\.|\$[A-Z]+\.)(?:[A-Za-z0-9_]+\.)*(?:node)?)"$`)
	found := 0
	for _, room := range []string{"internal/jetstream", "internal/embedded", "internal/gateway/nats"} {
		files, err := filepath.Glob(filepath.Join("..", "..", "..", room, "*.go"))
		if err != nil {
			t.Fatal(err)
		}
		for _, path := range files {
			if strings.HasSuffix(path, "_test.go") {
				continue
			}
			file, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
			if err != nil {
				t.Fatal(err)
			}
			ast.Inspect(file, func(n ast.Node) bool {
				lit, ok := n.(*ast.BasicLit)
				if !ok || lit.Kind != token.STRING {
					return true
				}
				if m := subject.FindStringSubmatch(lit.Value); m != nil && !slices.Contains(coveredElsewhere, m[1]) {
					if found++; !covered(m[1]) {
						t.Errorf("%s names %s, to which nothing is sent: give it a kind", path, m[1])
					}
				}
				return true
			})
		}
	}
	if found < 10 {
		t.Errorf("%d subjects found in the code", found)
	}
}

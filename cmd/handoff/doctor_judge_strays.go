package main

import (
	"fmt"
	"strings"
)

// judgeStrays names messages that no part of Handoff has put where they stand. All parts
// pass over them.
func judgeStrays(x examined) finding {
	if x.straysErr != nil {
		return fail("see what the engine says", "cannot tell what stands in the streams: %v", x.straysErr)
	}
	if len(x.strays) == 0 {
		return ok("nothing stands in the streams that is not Handoff's")
	}
	var where, about []string
	for _, s := range x.strays {
		where = append(where, fmt.Sprintf("%d in %s, such as %s", s.N, s.Stream, s.Subjects[0]))
		about = append(about, s.Subjects...)
	}
	first := x.strays[0]
	return warn(fmt.Sprintf("find out who writes them, and remove them: nats stream purge %s --subject '%s'; an agent whose profile is among them is registered anew: handoff agents put AGENT", first.Stream, first.Subjects[0]),
		"messages stand where none of Handoff's are, or can't be read: %s", strings.Join(where, "; ")).about(about)
}

package brief

import (
	"fmt"
	"strings"

	"github.com/agenthandoff/handoff/protocol"
)

// Specialist is an agent that guidance offers for a hand-off.
type Specialist struct {
	Profile protocol.Profile
	// Ended is the number of handoffs to it that have ended, and Succeeded how many of them with
	// success; zero is unknown.
	Succeeded, Ended int64
}

// guidance explains hand-offs to an agent. It is the text of a prompt.
const guidance = `## Working with Specialists

You may hand work to other agents. Do so when:

1. **You lack expertise**: the task needs knowledge that you do not have.
2. **It is better done there**: a specialist does it better or faster.
3. **The user asks for it**: the user names a specialist.
4. **It is an operation of its own**: tests, deployment, a security audit.

When you hand off:

- Say exactly what the specialist is to do.
- Hand over the context that it needs, and no more.
- Say why you hand off.
- When its result is there, fit it into your answer; the user goes on talking to you.

How:

- To hand on what you have done, and be done with it, end with {"body": "what you did", "command": {"goto": "AGENT", "update": {"next_task": "what is to be done", "reason": "why"}}}.
- To ask and go on with the answer, end with {"command": {"await": [{"agent": "AGENT", "task": "what is to be done"}]}}. You are asked again with its result.
- Where no specialist fits, do it yourself, or ask the user.

Available specialists:
`

// Guidance returns a prompt for an agent that may hand off to these specialists. It keeps their
// order, and puts each profile on one line.
func Guidance(specialists []Specialist) string {
	var w strings.Builder
	w.WriteString(guidance)
	if len(specialists) == 0 {
		w.WriteString("- none: do it yourself, or ask the user.\n")
	}
	for _, s := range specialists {
		what := []string{oneLine(cut(s.Profile.Description))}
		if what[0] == "" {
			what[0] = oneLine(s.Profile.Specialization)
		}
		var can []string
		for _, c := range s.Profile.Capabilities {
			can = append(can, oneLine(c.ID))
		}
		if len(can) > 0 {
			what = append(what, "it can "+strings.Join(can, ", "))
		}
		if len(s.Profile.Examples) > 0 {
			what = append(what, "for example: "+oneLine(cut(s.Profile.Examples[0])))
		}
		if expects := s.Profile.Contract.Expects(); len(expects) > 0 {
			what = append(what, "its context must have "+oneLine(cut(strings.Join(expects, ", "))))
		}
		if s.Ended > 0 {
			what = append(what, fmt.Sprintf("%d of %d succeeded", s.Succeeded, s.Ended))
		}
		if what[0] == "" {
			what = what[1:]
		}
		fmt.Fprintf(&w, "- **%s**", s.Profile.ID)
		if len(what) > 0 {
			fmt.Fprintf(&w, ": %s", strings.Join(what, "; "))
		}
		w.WriteString("\n")
	}
	return w.String()
}

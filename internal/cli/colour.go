package cli

import (
	"regexp"

	"github.com/agenthandoff/handoff/internal/index/ask"
	"github.com/agenthandoff/handoff/protocol"
	"github.com/agenthandoff/handoff/protocol/lifecycle"
)

const red, green, yellow = "\x1b[31m", "\x1b[32m", "\x1b[33m"

// colours tells whether stdout is a terminal whose owner wants colours.
func (a *app) colours() bool {
	return a.terminal && a.env("NO_COLOR") == "" && a.env("TERM") != "dumb"
}

// coloured is a word of our own in a colour, if it has one.
func (a *app) coloured(colour, word string) styled {
	if !a.colours() {
		return styled(word)
	}
	return styled(inColour(colour, word))
}

func inColour(colour, word string) string {
	if colour == "" {
		return word
	}
	return colour + word + "\x1b[0m"
}

// phaseColour is green for success, red for another end, yellow for what waits for more than
// its worker.
func phaseColour(phase protocol.Phase, outcome protocol.Outcome, closed bool, level int) string {
	switch {
	case closed && (outcome == protocol.OutcomeSuccess || outcome == protocol.OutcomePartial):
		return green
	case closed:
		return red
	case phase == protocol.Conditional, phase == protocol.Retrying, level > 0:
		return yellow
	}
	return ""
}

// inboxColour is red for what went wrong, yellow for what others wait for.
func inboxColour(why string) string {
	switch why {
	case string(lifecycle.InboxReview):
		return red
	case string(lifecycle.InboxQuestion), string(lifecycle.InboxEscalation), string(lifecycle.InboxBudget):
		return yellow
	}
	return ""
}

// rowsPaint paints the column of the phase in a table of handoffs.
func rowsPaint(handoffs []ask.Row, column int) paint {
	return func(row, col int) string {
		if row == 0 || col != column {
			return ""
		}
		r := handoffs[row-1]
		return phaseColour(r.Phase, r.Outcome, r.Closed, r.Level)
	}
}

// columnPaint paints one column by the words in it.
func columnPaint(rows [][]string, column int, colourOf func(word string) string) paint {
	return func(row, col int) string {
		if row == 0 || col != column {
			return ""
		}
		return colourOf(rows[row][col])
	}
}

// topWords finds what an agent is, and why a handoff needs a person, in a line of top.
var topWords = regexp.MustCompile(`^(\S+ +)?(present|polls|polling|claims|busy|absent|paused|draining|stuck|late|person|question|undecided)([ ,]|$)`)

// topLine is a line of top, which is safe for a terminal, with its colours.
func (a *app) topLine(line string) styled {
	at := topWords.FindStringSubmatchIndex(line)
	if at == nil {
		return styled(line)
	}
	word := line[at[4]:at[5]]
	colour := yellow
	switch word {
	case "present", "polls", "busy":
		colour = green
	case "stuck", "absent":
		colour = red
	}
	return styled(line[:at[4]]) + a.coloured(colour, word) + styled(line[at[5]:])
}

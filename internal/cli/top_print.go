package cli

import (
	"fmt"
	"strings"

	"github.com/agenthandoff/handoff/api"
	"github.com/agenthandoff/handoff/internal/explain"
)

// topOnce prints a picture.
func (a *app) topOnce(v topView) error {
	if !a.text() {
		return a.value(v)
	}
	for _, line := range topLines(v, a.width, 0) {
		a.printf("%s\n", a.topLine(line))
	}
	return nil
}

// topLines are a picture as text: at most so wide and so high, where these are
// not 0. Every line is safe for a terminal.
func topLines(v topView, width, height int) []string {
	head := fmt.Sprintf("%s  %s, %d served  %d open  accepted %s/min  completed %s/min  failed %s/min",
		explain.Instant(v.At), explain.Count(len(v.Agents), "agent"), v.Served, v.Open, rate(v.Rates.Accepted), rate(v.Rates.Completed), rate(v.Rates.Failed))
	lines := []string{head}
	if v.Open < 0 {
		lines[0] = strings.Replace(head, "  -1 open", "", 1)
	}
	if v.Note != "" {
		lines = append(lines, v.Note)
	}
	attention := attentionLines(v)
	agents := agentLines(v)
	if height > 0 {
		// What needs attention gets up to half of what is left.
		left := height - len(lines) - 2 // empty ones
		most := max(left/2, left-len(agents))
		attention = cutLines(attention, most, "more need attention")
		agents = cutLines(agents, left-len(attention), "more agents")
	}
	lines = append(append(lines, ""), agents...)
	if len(attention) > 0 {
		lines = append(append(lines, ""), attention...)
	}
	if height > 0 && len(lines) > height {
		lines = lines[:height]
	}
	for i, line := range lines {
		if width > 0 {
			line = cutColumns(line, width)
		}
		lines[i] = strings.TrimRight(line, " ")
	}
	return lines
}

// cutLines keeps so many lines of a table, and counts the rest in its last one.
func cutLines(lines []string, most int, what string) []string {
	most = max(most, 0)
	if len(lines) <= most {
		return lines
	}
	if most < 3 {
		return lines[:most]
	}
	return append(lines[:most-1:most-1], fmt.Sprintf("… %d %s", len(lines)-most+1, what))
}

func agentLines(v topView) []string {
	if len(v.Agents) == 0 {
		return []string{"no agents yet; start one: handoff work --agent NAME -- CMD"}
	}
	rows := [][]string{{"AGENT", "IS", "WORKERS", "BUSY", "QUEUED", "C/H/N/L", "WAITS", "ACCEPTED", "DONE", "FAILED/MIN"}}
	for _, a := range v.Agents {
		lanes := "-"
		if a.Queued > 0 {
			lanes = fmt.Sprintf("%d/%d/%d/%d", a.Lanes.Critical, a.Lanes.High, a.Lanes.Normal, a.Lanes.Low)
		}
		is := string(a.Availability)
		if a.Availability == api.Polling {
			is = explain.Polls(a.PolledAt, v.At)
		}
		rows = append(rows, []string{a.Agent, is, fmt.Sprint(a.Workers), fmt.Sprintf("%d/%d", a.Busy, a.Slots), fmt.Sprint(a.Queued),
			lanes, explain.Ago(a.Waiting, v.At), rate(a.Accepted), rate(a.Completed), rate(a.Failed)})
	}
	return tableLines(rows)
}

func attentionLines(v topView) []string {
	if len(v.Attention) == 0 {
		return nil
	}
	rows := [][]string{{"WHY", "TICKET", "AGENT", "AGE", "WAITS FOR"}}
	for _, t := range v.Attention {
		rows = append(rows, []string{string(t.Why), t.Ticket, t.Agent, explain.Ago(t.SubmittedAt, v.At), t.Words})
	}
	return tableLines(rows)
}

func tableLines(rows [][]string) []string {
	var b strings.Builder
	_ = writeTable(&b, rows) // a builder takes everything
	return strings.Split(strings.TrimRight(b.String(), "\n"), "\n")
}

// rate writes a number of things a minute, as short as a table wants it.
func rate(perMinute float64) string {
	if perMinute >= 10 {
		return fmt.Sprintf("%.0f", perMinute)
	}
	return explain.Number(perMinute)
}

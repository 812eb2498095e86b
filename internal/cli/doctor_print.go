package cli

import (
	"fmt"
	"strings"

	"github.com/agenthandoff/handoff/internal/doctor"
	"github.com/agenthandoff/handoff/internal/explain"
)

// diagnosisView is what doctor found, for programs.
type diagnosisView struct {
	OK     bool             `json:"ok"`
	Checks []doctor.Finding `json:"checks"`
}

// findings prints what was found. The error is nil if all is well.
func (a *app) findings(all []doctor.Finding) error {
	failed := &checksFailedError{all: len(all)}
	for i, f := range all {
		all[i].Do = toDo(f)
		switch f.Status {
		case doctor.StatusFail:
			failed.fails++
		case doctor.StatusWarn:
			failed.warns++
		}
	}
	well := failed.fails+failed.warns == 0
	var err error
	switch a.format {
	case formatText:
		a.findingLines(all)
	case formatJSON:
		err = a.value(diagnosisView{OK: well, Checks: all})
	default:
		err = list(a, all)
	}
	if err == nil && !well {
		err = failed
	}
	return err
}

// toDo is what a finding says is to be done, with its commands.
func toDo(f doctor.Finding) string {
	var commands []string
	for _, action := range f.Actions {
		commands = append(commands, commandLine(action))
		if action.Op == explain.OpSupervise || action.Op == explain.OpIndex {
			commands = append(commands, "handoff dev has one")
		}
	}
	if len(commands) == 0 {
		return f.Do
	}
	return f.Do + " (" + strings.Join(commands, "; ") + ")"
}

func (a *app) findingLines(all []doctor.Finding) {
	widest := 0
	for _, f := range all {
		widest = max(widest, len(f.Check))
	}
	for _, f := range all {
		a.printf("%s  %-*s  %s\n", a.health(f.Status), widest, f.Check, f.Message)
		if f.Do != "" {
			a.printf("      %-*s  do: %s\n", widest, "", f.Do)
		}
	}
}

// health is a status as a terminal shows it, four columns wide.
func (a *app) health(h doctor.Status) styled {
	return a.coloured(map[doctor.Status]string{doctor.StatusOK: green, doctor.StatusWarn: yellow, doctor.StatusFail: red}[h], fmt.Sprintf("%-4s", h))
}

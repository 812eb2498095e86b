package cli

import (
	"strconv"
	"strings"

	"github.com/agenthandoff/handoff/protocol"
)

// parseLevel reads "go" or "go:0.8": a capability and how well.
func parseLevel(flag, text string) (id string, level float64, given bool, err error) {
	id, number, given := strings.Cut(text, ":")
	if !given {
		return id, 0, false, nil
	}
	level, err = strconv.ParseFloat(number, 64)
	if err != nil {
		return "", 0, false, usagef("%s %q: write NAME or NAME:0.8", flag, text)
	}
	return id, level, true, nil
}

func parseCapabilities(flag string, texts []string) ([]protocol.Capability, error) {
	var list []protocol.Capability
	for _, text := range texts {
		id, level, given, err := parseLevel(flag, text)
		if err != nil {
			return nil, err
		}
		if !given {
			level = 1
		}
		list = append(list, protocol.Capability{ID: id, Proficiency: level})
	}
	return list, nil
}

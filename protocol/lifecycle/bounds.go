package lifecycle

import (
	"slices"
	"strings"
	"unicode/utf8"
)

// Bounds of what a State keeps: it must stay under protocol.StateBytesMax.

// MessageBytesMax is how much of an error's or a refusal's words the State
// keeps, counted in JSON; the event keeps all of them.
const MessageBytesMax = 2 << 10

// listMax bounds the lists of agents in a State; beyond it the oldest go.
const listMax = 48

// conditionsKept is how many needs of either kind the State keeps, each cut to
// 128 bytes; the event keeps all of them.
const conditionsKept = 16

// appendAgent adds to a list without touching the array under an older State.
func appendAgent(list []string, agent string) []string {
	if agent == "" || slices.Contains(list, agent) {
		return list
	}
	next := append(slices.Clip(slices.Clone(list)), agent)
	if len(next) > listMax {
		next = next[len(next)-listMax:]
	}
	return next
}

// withoutAgent is the list without an agent, in an array of its own.
func withoutAgent(list []string, agent string) []string {
	if !slices.Contains(list, agent) {
		return list
	}
	return slices.DeleteFunc(slices.Clone(list), func(a string) bool { return a == agent })
}

func cutAll(list []string) []string {
	if len(list) == 0 {
		return nil
	}
	if len(list) > conditionsKept {
		list = list[:conditionsKept]
	}
	out := make([]string, len(list))
	for i, s := range list {
		out[i] = cutTo(s, 128)
	}
	return out
}

func cut(s string) string { return cutTo(s, MessageBytesMax) }

// cutCode bounds what should be a short machine-readable word.
func cutCode(s string) string { return cutTo(s, 128) }

// cutTo keeps the beginning of a text that takes at most so many bytes in JSON:
// it is there that StateBytesMax counts, and a control character is six of them.
func cutTo(s string, most int) string {
	const escaped = len(`\u0000`)
	if len(s) <= most/escaped {
		return s
	}
	if len(s) > most+utf8.UTFMax {
		s = s[:most+utf8.UTFMax]
	}
	s = strings.ToValidUTF8(s, "\uFFFD")
	size := 0
	for i, r := range s {
		switch {
		case strings.ContainsRune("\"\\\b\f\n\r\t", r):
			size += 2
		case r < ' ' || r == '\u2028' || r == '\u2029':
			size += escaped
		default:
			size += utf8.RuneLen(r)
		}
		if size > most {
			return strings.TrimSpace(s[:i]) + "…"
		}
	}
	return s
}

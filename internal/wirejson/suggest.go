package wirejson

import (
	"strings"

	"github.com/agenthandoff/handoff/internal/words"
)

// unknownField describes the error of a field that sh does not know, and suggests a place for its
// content.
func (sh *Shape) unknownField(key, hint string) string {
	message := "is no field of a " + sh.owner
	if strings.ContainsAny(sh.owner[:1], "aeio") {
		message = "is no field of an " + sh.owner
	}
	if path := sh.suggest(snake(key)); path != "" && path != key {
		return message + "; did you mean " + path + "?"
	}
	if hint != "" {
		return message + "; " + hint
	}
	return message
}

// suggest returns the field of sh, or below it, that was probably meant.
func (sh *Shape) suggest(name string) string {
	if sh.fields[name] != nil {
		return name
	}
	if path := sh.aliases[name]; path != "" && sh.fields[strings.Split(path, ".")[0]] != nil {
		return path
	}
	for _, f := range sh.order {
		if len(name) > 3 && words.Edits(f.Name, name) <= 1 {
			return f.Name
		}
	}
	for _, f := range sh.order {
		if f.shape.kind == kindObject && f.shape.fields[name] != nil {
			return f.Name + "." + name
		}
	}
	return ""
}

// snake turns conversationId and ConversationID into conversation_id.
func snake(name string) string {
	var b strings.Builder
	upper := func(i int) bool { return i >= 0 && i < len(name) && name[i] >= 'A' && name[i] <= 'Z' }
	for i := range len(name) {
		c := name[i]
		if upper(i) {
			if i > 0 && name[i-1] != '_' && (!upper(i-1) || i+1 < len(name) && !upper(i+1)) {
				b.WriteByte('_')
			}
			c |= 0x20
		}
		b.WriteByte(c)
	}
	return b.String()
}

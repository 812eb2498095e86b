package wirejson

import "strings"

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
		if len(name) > 3 && near(f.Name, name) {
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

// near reports whether one insertion, deletion, change or swap of neighbours turns a into b.
func near(a, b string) bool {
	if len(a) > len(b) {
		a, b = b, a
	}
	if len(b)-len(a) > 1 {
		return false
	}
	i := 0
	for i < len(a) && a[i] == b[i] {
		i++
	}
	if len(a) < len(b) {
		return a[i:] == b[i+1:]
	}
	if i == len(a) || a[i+1:] == b[i+1:] {
		return true
	}
	return i+1 < len(a) && a[i] == b[i+1] && a[i+1] == b[i] && a[i+2:] == b[i+2:]
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

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
		if len(name) > 3 && Edits(f.Name, name) <= 1 {
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

// Edits counts the letters to insert, omit, change or swap with the next to turn a into b.
func Edits(a, b string) int {
	x, y := []rune(a), []rune(b)
	rows := make([][]int, len(x)+1)
	for i := range rows {
		rows[i] = make([]int, len(y)+1)
		rows[i][0] = i
	}
	for j := range y {
		rows[0][j+1] = j + 1
	}
	for i := range x {
		for j := range y {
			change := 1
			if x[i] == y[j] {
				change = 0
			}
			rows[i+1][j+1] = min(rows[i][j+1]+1, rows[i+1][j]+1, rows[i][j]+change)
			if i > 0 && j > 0 && x[i] == y[j-1] && x[i-1] == y[j] {
				rows[i+1][j+1] = min(rows[i+1][j+1], rows[i-1][j-1]+1)
			}
		}
	}
	return rows[len(x)][len(y)]
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

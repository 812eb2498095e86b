package protocol

import "encoding/binary"

// Most of what is read is free data and what a reader does not want: JSON of
// which only the end must be found, and that it is JSON. The skimmer does that
// and nothing else. What it does not get through the scanner reads again, and
// says what is wrong with it; so it may refuse what is rare.

// skimDepthMax is how deep the skimmer goes.
const skimDepthMax = 32

type skimmer struct {
	data   []byte
	spaced bool // there was white space between the words
	nul    bool // a text holds \u0000
}

// Eight bytes at a time.
const (
	everyByte = 0x0101010101010101
	highBits  = 0x80 * everyByte
)

// special is not 0 if one of eight bytes may not stand in a text as it is: a
// quote, a backslash, a control character.
func special(x uint64) uint64 {
	quote, backslash := x^('"'*everyByte), x^('\\'*everyByte)
	return ((x-0x20*everyByte)&^x | (quote-everyByte)&^quote | (backslash-everyByte)&^backslash) & highBits
}

// space is the place of the next byte that is no white space.
func (k *skimmer) space(i int) int {
	for i < len(k.data) {
		switch k.data[i] {
		case ' ', '\t', '\n', '\r':
			k.spaced = true
			i++
		default:
			return i
		}
	}
	return i
}

// value is the place behind the value that begins at i or behind white space
// there; -1 if it is none, or has more than so many levels.
func (k *skimmer) value(i, levels int) int {
	if i = k.space(i); i >= len(k.data) {
		return -1
	}
	switch c := k.data[i]; {
	case c == '"':
		return k.text(i)
	case c == '{' && levels > 0:
		return k.object(i+1, levels-1)
	case c == '[' && levels > 0:
		return k.list(i+1, levels-1)
	case c == 't':
		return k.word(i, "true")
	case c == 'f':
		return k.word(i, "false")
	case c == 'n':
		return k.word(i, "null")
	}
	return k.number(i)
}

func (k *skimmer) object(i, levels int) int {
	if i = k.space(i); i < len(k.data) && k.data[i] == '}' {
		return i + 1
	}
	for {
		if i = k.space(i); i >= len(k.data) || k.data[i] != '"' {
			return -1
		}
		if i = k.text(i); i < 0 {
			return -1
		}
		if i = k.space(i); i >= len(k.data) || k.data[i] != ':' {
			return -1
		}
		if i = k.value(i+1, levels); i < 0 {
			return -1
		}
		if i = k.space(i); i >= len(k.data) || k.data[i] != ',' {
			break
		}
		i++
	}
	if i < len(k.data) && k.data[i] == '}' {
		return i + 1
	}
	return -1
}

func (k *skimmer) list(i, levels int) int {
	if i = k.space(i); i < len(k.data) && k.data[i] == ']' {
		return i + 1
	}
	for {
		if i = k.value(i, levels); i < 0 {
			return -1
		}
		if i = k.space(i); i >= len(k.data) || k.data[i] != ',' {
			break
		}
		i++
	}
	if i < len(k.data) && k.data[i] == ']' {
		return i + 1
	}
	return -1
}

func (k *skimmer) word(i int, word string) int {
	if end := i + len(word); end <= len(k.data) && string(k.data[i:end]) == word {
		return end
	}
	return -1
}

// text is the place behind the string whose quote stands at i.
func (k *skimmer) text(i int) int {
	data := k.data
	for i++; ; {
		for len(data)-i >= 8 && special(binary.LittleEndian.Uint64(data[i:])) == 0 {
			i += 8
		}
		for i < len(data) && plain[data[i]] {
			i++
		}
		if i >= len(data) || data[i] != '\\' {
			break
		}
		if i = k.escape(i); i < 0 {
			return -1
		}
	}
	if i < len(data) && data[i] == '"' {
		return i + 1
	}
	return -1
}

// escape is the place behind the escape sequence at i.
func (k *skimmer) escape(i int) int {
	rest := k.data[i:]
	if len(rest) < 2 {
		return -1
	}
	switch rest[1] {
	case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
		return i + 2
	case 'u':
		unit, ok := hex4(rest[2:])
		if !ok {
			return -1
		}
		k.nul = k.nul || unit == 0
		return i + 6
	}
	return -1
}

// number is the place behind the number at i.
func (k *skimmer) number(i int) int {
	if i < len(k.data) && k.data[i] == '-' {
		i++
	}
	if i < len(k.data) && k.data[i] == '0' {
		i++
	} else if i = k.digits(i); i < 0 {
		return -1
	}
	if i < len(k.data) && k.data[i] == '.' {
		if i = k.digits(i + 1); i < 0 {
			return -1
		}
	}
	if i < len(k.data) && k.data[i]|0x20 == 'e' {
		if i++; i < len(k.data) && (k.data[i] == '+' || k.data[i] == '-') {
			i++
		}
		return k.digits(i)
	}
	return i
}

// digits is the place behind one digit or more.
func (k *skimmer) digits(i int) int {
	start := i
	for i < len(k.data) && k.data[i] >= '0' && k.data[i] <= '9' {
		i++
	}
	if i == start {
		return -1
	}
	return i
}

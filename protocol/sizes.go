package protocol

import (
	"encoding/base64"
	"fmt"
	"math/bits"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Size formats a number of bytes for people: 90 bytes, 1.5 KiB, 64 MiB.
func Size(n int64) string {
	const unit = 1 << 10
	if n < unit {
		return fmt.Sprintf("%d bytes", n)
	}
	value, units := float64(n)/unit, []string{"KiB", "MiB", "GiB", "TiB"}
	for value >= unit && len(units) > 1 {
		value, units = value/unit, units[1:]
	}
	return strings.TrimSuffix(strconv.FormatFloat(value, 'f', 1, 64), ".0") + " " + units[0]
}

// OverSize formats a size and the limit that it exceeds: in bytes if both would look alike.
func OverSize(n, most int) string {
	is, limit := Size(int64(n)), Size(int64(most))
	if is == limit {
		is, limit = fmt.Sprintf("%d bytes", n), fmt.Sprintf("%d", most)
	}
	return fmt.Sprintf("is %s, at most %s are allowed", is, limit)
}

// Tokens estimates how many tokens a model makes of a text. Letters and digits count in fours;
// every other character counts as one, and so do those of scripts without spaces. White space is
// free. It is one fixed rule, and no model's own.
func Tokens(text string) int {
	var m meter
	for _, r := range text {
		m.add(r)
	}
	return m.tokens
}

// meter counts tokens rune by rune.
type meter struct {
	tokens int
	run    int // letters and digits since the last other character
}

// spacelessFrom is the first character of the scripts that are written without spaces: Han, kana,
// Hangul.
const spacelessFrom = 0x2E80

func (m *meter) add(r rune) {
	switch {
	case unicode.IsSpace(r):
		m.run = 0
	case r < spacelessFrom && (unicode.IsLetter(r) || unicode.IsDigit(r)):
		if m.run%4 == 0 {
			m.tokens++
		}
		m.run++
	default:
		m.tokens++
		m.run = 0
	}
}

// ConversationTokens estimates the tokens of messages: of their texts and field names, without the
// punctuation of JSON.
func ConversationTokens(messages []Message) (n int) {
	for _, message := range messages {
		n += jsonTokens(message)
	}
	return n
}

// PackageTokens estimates the tokens of a package as JSON: of its texts and field names.
func PackageTokens(body []byte) int64 { return int64(jsonTokens(body)) }

func jsonTokens(raw []byte) int {
	var m meter
	isText := false
	for i := 0; i < len(raw); {
		r, size := utf8.DecodeRune(raw[i:])
		i += size
		switch {
		case r == '"':
			isText, m.run = !isText, 0
		case isText && r == '\\' && i < len(raw):
			escaped := raw[i]
			i++
			switch m.run = 0; escaped {
			case 'n', 't', 'r', 'b', 'f': // white space
			case 'u':
				m.tokens++
				i = min(i+4, len(raw))
			default:
				m.tokens++
			}
		case !isText && strings.ContainsRune("{}[]:,", r):
			m.run = 0
		default:
			m.add(r)
		}
	}
	return m.tokens
}

// cutTokens cuts a text to at most most tokens, at a space if one is near, and then adds an
// ellipsis. White space becomes single spaces.
func cutTokens(text string, most int) string {
	text = strings.Join(strings.Fields(text), " ")
	if most < 2 {
		return ""
	}
	var m meter
	end := -1 // end of the part that fits together with an ellipsis
	for i, r := range text {
		if m.add(r); m.tokens >= most && end < 0 {
			end = i
		}
		if m.tokens > most {
			cut := text[:end]
			if space := strings.LastIndexByte(cut, ' '); space > len(cut)/2 {
				cut = cut[:space]
			}
			return strings.TrimRight(cut, " ") + "…"
		}
	}
	return text
}

// Bits is a set of small numbers, such as the ordinals of children: a bitmap in base64
// (RFC 4648 §4, without padding), number 0 in the lowest bit of the first byte. Empty or invalid
// text is the empty set.
type Bits string

func (b Bits) bytes() []byte {
	raw, err := base64.RawStdEncoding.DecodeString(string(b))
	if err != nil {
		return nil
	}
	return raw
}

// Has reports whether n is in the set.
func (b Bits) Has(n int) bool {
	raw := b.bytes()
	return n >= 0 && n/8 < len(raw) && raw[n/8]&(1<<(n%8)) != 0
}

// With returns the set with these numbers added; those outside of 0 to ChildrenMax-1 are ignored.
func (b Bits) With(numbers ...int) Bits {
	raw := b.bytes()
	for _, n := range numbers {
		if n < 0 || n >= ChildrenMax {
			continue
		}
		for len(raw) <= n/8 {
			raw = append(raw, 0)
		}
		raw[n/8] |= 1 << (n % 8)
	}
	return Bits(base64.RawStdEncoding.EncodeToString(raw))
}

// AllBits returns the set of 0 to n-1.
func AllBits(n int) Bits {
	numbers := make([]int, n)
	for i := range numbers {
		numbers[i] = i
	}
	return Bits("").With(numbers...)
}

// Below reports whether all numbers of the set are below n.
func (b Bits) Below(n int) bool {
	if b == "" { // usual case
		return true
	}
	raw := b.bytes()
	for i := len(raw) - 1; i >= 0; i-- {
		if raw[i] != 0 {
			return i*8+bits.Len8(raw[i]) <= n
		}
	}
	return true
}

// Len returns the size of the set.
func (b Bits) Len() int {
	n := 0
	for _, x := range b.bytes() {
		n += bits.OnesCount8(x)
	}
	return n
}

// And returns the intersection.
func (b Bits) And(o Bits) Bits { return b.both(o, func(x, y byte) byte { return x & y }) }

// Or returns the union.
func (b Bits) Or(o Bits) Bits { return b.With(o.Numbers()...) }

// Without returns the numbers of b that are not in o.
func (b Bits) Without(o Bits) Bits { return b.both(o, func(x, y byte) byte { return x &^ y }) }

func (b Bits) both(o Bits, of func(x, y byte) byte) Bits {
	raw, other := b.bytes(), o.bytes()
	last := 0
	for i := range raw {
		y := byte(0)
		if i < len(other) {
			y = other[i]
		}
		if raw[i] = of(raw[i], y); raw[i] != 0 {
			last = i + 1
		}
	}
	return Bits(base64.RawStdEncoding.EncodeToString(raw[:last]))
}

// Numbers lists the set in ascending order.
func (b Bits) Numbers() []int {
	var all []int
	for i, x := range b.bytes() {
		for j := range 8 {
			if x&(1<<j) != 0 {
				all = append(all, i*8+j)
			}
		}
	}
	return all
}

// ReasonAtCapacity is why an agent takes no more: it holds max_concurrency handoffs.
const ReasonAtCapacity = "at_capacity"

// Slots are the handoffs that the holders of an agent with max_concurrency hold together, by
// ticket.
type Slots map[string]Slot

// Slot records a holder, the offer by which it has the handoff, and since when.
type Slot struct {
	Holder string `json:"holder"`
	Offer  uint64 `json:"offer"`
	At     Time   `json:"at"`
}

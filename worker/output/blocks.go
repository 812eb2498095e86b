package output

import (
	"bytes"
	"encoding/json"
	"errors"
	"regexp"
	"strings"
)

// block is a part of an output that may be meant as a result.
type block struct {
	span
	outer span // with its fences
	value bool // it is one JSON object
	bare  bool // it has no fences
}

// blocks finds the blocks of a document, in order. A text that begins as a JSON object and is none
// is a block, too, up to the next one.
func (d *document) blocks() []block {
	var found []block
	failed := 4*len(d.masked) + 1<<20 // bytes that may be read in vain
	for at := 0; at < len(d.masked); {
		end := lineEnd(d.masked, at)
		line := d.masked[at:end]
		switch trimmed := bytes.TrimLeft(line, " \t\xEF\xBB\xBF"); {
		case isFence(trimmed):
			b := d.fenced(at, trimmed, nestedMax)
			found = append(found, b)
			at = b.outer.to
			continue
		case len(trimmed) > 0 && trimmed[0] == '{' && failed > 0:
			from := end - len(trimmed)
			size, cost, ok := object(d.masked[from:])
			if rest := d.masked[from+size : max(lineEnd(d.masked, from+size), from+size)]; ok && len(bytes.TrimSpace(rest)) == 0 {
				inside := span{from, from + size}
				found = append(found, block{span: inside, outer: inside, value: true, bare: true})
				at = lineEnd(d.masked, from+size)
				continue
			}
			failed -= cost
			if n := len(found); n == 0 || found[n-1].value || !found[n-1].bare { // else it is a part of that
				found = append(found, block{span: span{from, len(d.masked)}, outer: span{from, len(d.masked)}, bare: true})
			}
		}
		at = end
	}
	for i := range found[:max(0, len(found)-1)] { // a broken one ends where the next begins
		if found[i].bare && !found[i].value {
			found[i].to, found[i].outer.to = found[i+1].outer.from, found[i+1].outer.from
		}
	}
	return found
}

// lineEnd is the offset behind the line that holds at.
func lineEnd(text []byte, at int) int {
	if i := bytes.IndexByte(text[at:], '\n'); i >= 0 {
		return at + i + 1
	}
	return len(text)
}

// object reads a JSON object at the beginning of a text: how long it is, or how much was read
// to find that it is none.
func object(text []byte) (size, cost int, ok bool) {
	dec := json.NewDecoder(bytes.NewReader(text))
	var raw json.RawMessage
	err := dec.Decode(&raw)
	var syntax *json.SyntaxError
	switch {
	case err == nil:
		return int(dec.InputOffset()), 0, true
	case errors.As(err, &syntax):
		return 0, int(syntax.Offset) + 512, false
	}
	return 0, len(text), false
}

// isFence reports whether a line, without its indentation, opens a fenced block.
func isFence(line []byte) bool {
	n := fenceLength(line)
	return n >= 3 && (line[0] != '`' || !bytes.Contains(line[n:], []byte("`")))
}

// fenceLength is how many equal marks of a fence a line begins with.
func fenceLength(line []byte) int {
	if len(line) == 0 || line[0] != '`' && line[0] != '~' {
		return 0
	}
	return len(line) - len(bytes.TrimLeft(line, string(line[0])))
}

// nestedMax is how deep in others a fenced block may be that is all that they hold.
const nestedMax = 4

// fenced is the block that a line opens. One that is not closed reaches to the end. A block
// that is all that another one holds is the block.
func (d *document) fenced(at int, open []byte, nested int) block {
	n := fenceLength(open)
	mark := open[0]
	from := lineEnd(d.masked, at)
	b := block{span: span{from, len(d.masked)}, outer: span{at, len(d.masked)}}
	for next := from; next < len(d.masked); {
		end := lineEnd(d.masked, next)
		line := bytes.TrimSpace(d.masked[next:end])
		if m := fenceLength(line); m >= n && m == len(line) && line[0] == mark {
			b.to, b.outer.to = next, end
			break
		}
		next = end
	}
	inside := d.masked[b.from:b.to]
	trimmed := bytes.TrimSpace(inside)
	if nested > 0 && isFence(firstLine(trimmed)) {
		inner := d.fenced(b.from+bytes.Index(inside, trimmed), firstLine(trimmed), nested-1)
		if len(bytes.TrimSpace(d.masked[inner.outer.to:max(b.to, inner.outer.to)])) == 0 {
			inner.outer = b.outer
			return inner
		}
	}
	b.from += bytes.Index(inside, trimmed)
	b.to = b.from + len(trimmed)
	b.value = len(trimmed) > 0 && trimmed[0] == '{' && json.Valid(trimmed)
	return b
}

func firstLine(text []byte) []byte { return text[:lineEnd(text, 0)] }

// thought matches the thoughts of a model.
var thought = regexp.MustCompile(`(?ms)^[ \t]*<(?:think|thinking|reasoning|thought)>.*?</(?:think|thinking|reasoning|thought)>`)

// maskThoughts puts blanks in the place of thoughts, and leaves line breaks.
func maskThoughts(text []byte) []byte {
	all := thought.FindAllIndex(text, -1)
	if all == nil {
		return text
	}
	masked := bytes.Clone(text)
	for _, at := range all {
		blank(masked, span{at[0], at[1]})
	}
	return masked
}

// syntax returns the offset at which a text stops being JSON, and why.
func syntax(text []byte) (offset int, why string) {
	var any json.RawMessage
	err := json.Unmarshal(text, &any)
	var syntax *json.SyntaxError
	if !errors.As(err, &syntax) {
		return 0, "it is no JSON"
	}
	offset = max(0, int(syntax.Offset)-1)
	why = strings.TrimPrefix(err.Error(), "json: ")
	rest := text[min(offset, len(text)):]
	before := bytes.TrimRight(text[:min(offset, len(text))], " \t\r\n")
	switch {
	case len(rest) == 0:
	case rest[0] == '\'', python3.Match(rest):
		why = "this looks like a Python dict: print(json.dumps(…))"
	case (rest[0] == '}' || rest[0] == ']') && bytes.HasSuffix(before, []byte(",")):
		offset, why = len(before)-1, "a comma too many: nothing follows it"
	case rest[0] == '/':
		why = "JSON has no comments"
	}
	return offset, "it is no JSON: " + why
}

// python3 are the values of Python that JSON does not have.
var python3 = regexp.MustCompile(`^(?:True|False|None)\b`)

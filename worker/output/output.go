// Package output reads what a program, or a language model behind it, wrote to its standard
// output, and says what it is: a result, a text, or a result that is broken. It is pure, and
// takes time in proportion to the output.
package output

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/agenthandoff/handoff/protocol"
)

// Mode says how an output is read.
type Mode string

const (
	Auto Mode = "auto" // the rules of Read
	JSON Mode = "json" // the whole output is a result, or the attempt has failed
	Text Mode = "text" // the whole output is the body, and nothing in it is looked at
)

// Modes lists how an output may be read.
var Modes = []Mode{Auto, JSON, Text}

// Output is what was read.
type Output struct {
	Result protocol.Result
	// SetAside is what stood around the result, in the order of the output. Result.SetAside
	// says how much it is.
	SetAside []byte
}

// Malformed is an output that tries to be a result and is not one.
type Malformed struct {
	Line, Column int // where, from 1
	Why          string
}

func (m *Malformed) Error() string {
	return fmt.Sprintf("the output is a malformed result: line %d, column %d: %s", m.Line, m.Column, m.Why)
}

// Read makes a result of an output. The error is a *Malformed. In mode auto the first rule
// that fits holds; a block is a fenced one, or a JSON object that begins a line and ends one:
//
//  1. White space is a result without a body.
//  2. A JSON object that is the whole output, or else the last block of it, is the result if
//     its keys are those of a result, or of a command alone, and their values are valid. What
//     is around it is set aside.
//  3. What tries to be a result is Malformed: see tries, and triesText.
//  4. Any other JSON value that is the whole output is the body.
//  5. Else the output is the body, as text.
//
// What an object says of its usage in the words of a model (Usage) counts in all of them.
//
// What a model has thought, between <think> tags, is looked at by none of them.
func Read(stdout []byte, mode Mode) (Output, error) {
	switch mode {
	case Text:
		return Output{Result: protocol.ResultFromText(stdout)}, nil
	case JSON:
		return strict(stdout)
	}
	text := bytes.TrimPrefix(stdout, byteOrderMark)
	whole := bytes.TrimSpace(text)
	if len(whole) == 0 {
		return Output{Result: protocol.ResultFromOutput(nil)}, nil
	}
	doc := &document{raw: stdout}
	if json.Valid(whole) {
		return doc.readValue(span{from: bytes.Index(stdout, whole), to: bytes.Index(stdout, whole) + len(whole)})
	}
	return doc.readText()
}

var byteOrderMark = []byte("\xEF\xBB\xBF")

// strict reads an output that has to be a result.
func strict(stdout []byte) (Output, error) {
	doc := &document{raw: stdout}
	whole := bytes.TrimSpace(bytes.TrimPrefix(stdout, byteOrderMark))
	at := bytes.Index(stdout, whole)
	switch {
	case len(whole) == 0:
		return Output{}, doc.malformed(0, "nothing was printed, and a result is asked for")
	case !json.Valid(whole):
		offset, why := syntax(whole)
		return Output{}, doc.malformed(at+offset, why)
	}
	result, err := decode(whole)
	if err != nil {
		return Output{}, doc.malformed(at, err.Error())
	}
	return Output{Result: result}, nil
}

// place is where a decoder of an object says that it is wrong.
var place = regexp.MustCompile(` \(line (\d+), column (\d+)\)$`)

// document is an output that is being read.
type document struct {
	raw    []byte
	masked []byte // raw, with blanks where a model has thought; of the same length
}

// span is a part of a document.
type span struct{ from, to int }

func (d *document) malformed(at int, why string) *Malformed {
	before := d.raw[:min(at, len(d.raw))]
	line := bytes.LastIndexByte(before, '\n') + 1
	m := &Malformed{Line: bytes.Count(before, []byte("\n")) + 1, Column: utf8.RuneCount(before[line:]) + 1, Why: why}
	if within := place.FindStringSubmatch(why); within != nil { // counted from the object on
		lines, _ := strconv.Atoi(within[1])
		column, _ := strconv.Atoi(within[2])
		if m.Why = strings.TrimSuffix(why, within[0]); lines > 1 {
			m.Column = column
		} else {
			m.Column += column - 1
		}
		m.Line += lines - 1
	}
	return m
}

// readValue reads an output that is one JSON value.
func (d *document) readValue(at span) (Output, error) {
	value := d.raw[at.from:at.to]
	if value[0] == '{' {
		result, err := decode(value)
		if err == nil {
			return Output{Result: result}, nil
		}
		if why := tries(value, err, true); why != "" {
			return Output{}, d.malformed(at.from, why)
		}
	} else if why := triesBelow(value); why != "" {
		return Output{}, d.malformed(at.from, why)
	}
	out := Output{Result: protocol.ResultFromOutput(d.raw)}
	out.Result.Usage = Usage(value) // a model's own answer, say
	return out, nil
}

// decode reads a JSON object as a result, or as the command of one that has no more.
func decode(object []byte) (protocol.Result, error) {
	result, err := decodeResult(object)
	if err != nil && isCommand(object) {
		if bare, refused := decodeResult(slices.Concat([]byte(`{"command":`), object, []byte(`}`))); refused == nil {
			result, err = bare, nil
		}
	}
	if err == nil && endsBeside(result.Command) {
		result.AddSetAside("END in a list ends nothing: the agents beside it are handed off to")
	}
	return result, err
}

// endsBeside reports whether a command names the end of the chain beside agents.
func endsBeside(c *protocol.Command) bool {
	if c == nil {
		return false
	}
	targets, _ := c.Targets() // of one that was validated
	ends := 0
	for _, to := range targets {
		if slices.Contains(protocol.Ends, to.Agent) {
			ends++
		}
	}
	return ends > 0 && ends < len(targets)
}

// isCommand reports whether an object has the fields of a command alone, and says what follows.
func isCommand(object []byte) bool {
	if !bytes.Contains(object, []byte(`"goto"`)) && !bytes.Contains(object, []byte(`"await"`)) { // as a rule
		return false
	}
	all := fields(object)
	for name := range all {
		if !slices.Contains([]string{"goto", "update", "await", "for"}, name) {
			return false
		}
	}
	return names(all["goto"]) || len(all["await"]) > 0 && string(all["await"]) != "null"
}

func decodeResult(object []byte) (protocol.Result, error) {
	ours := maskUsage(object)
	result, err := protocol.DecodeResult(ours)
	if err != nil {
		return result, err
	}
	if len(ours) > 0 && &ours[0] != &object[0] {
		result.Usage = Usage(object)
	}
	keys := fields(ours)
	if len(keys) == 0 {
		return result, errors.New("it has none of the fields of a result")
	}
	for _, name := range reserved {
		if _, has := keys[name]; has {
			return result, fmt.Errorf("%s: is written by the worker", name)
		}
	}
	result.Normalize()
	return result, result.Validate()
}

// readText reads an output that is more than a value, or less.
func (d *document) readText() (Output, error) {
	d.masked = maskThoughts(d.raw)
	blocks := d.blocks()
	for i := len(blocks) - 1; i >= 0; i-- {
		b := blocks[i]
		last := i == len(blocks)-1
		if !b.value {
			if at, why := d.triesBroken(b, last); why != "" {
				return Output{}, d.malformed(at, why)
			}
			continue
		}
		result, err := decode(d.raw[b.from:b.to])
		switch {
		case err == nil && last:
			return d.surrounded(result, b, blocks), nil
		case err == nil && result.Command != nil:
			return Output{}, d.malformed(b.from, "a result with a command has to be the last block of the output, and another block follows it")
		case err != nil:
			if why := tries(d.raw[b.from:b.to], err, false); why != "" {
				return Output{}, d.malformed(b.from, why)
			}
		}
	}
	if at, why := d.triesText(blocks); why != "" {
		return Output{}, d.malformed(at, why)
	}
	out := Output{Result: protocol.ResultFromOutput(d.raw)}
	if first := bytes.TrimLeft(bytes.TrimPrefix(d.raw, byteOrderMark), " \t\r\n"); first[0] == '{' && len(blocks) == 1 && !blocks[0].value {
		offset, why := syntax(first)
		place := d.malformed(len(d.raw)-len(first)+offset, why)
		out.Result.AddSetAside(fmt.Sprintf("the output begins as JSON and is none (line %d, column %d: %s); it was taken as text", place.Line, place.Column, why))
	}
	return out, nil
}

// surrounded is a result with what stands around it.
func (d *document) surrounded(result protocol.Result, b block, blocks []block) Output {
	before, after := d.raw[:b.outer.from], d.raw[b.outer.to:]
	out := Output{Result: result}
	var words []string
	if n := lines(before); n > 0 {
		words = append(words, count(n)+" before the result")
	}
	if n := lines(after); n > 0 {
		words = append(words, count(n)+" after the result")
	}
	if len(words) == 0 {
		return out
	}
	text := strings.Join(words, " and ") + " went to the worker's log, and not into the result"
	for _, other := range blocks[:len(blocks)-1] {
		if _, err := decode(d.raw[other.from:other.to]); other.value && err == nil {
			text += "; a block before it has the form of a result, too"
			break
		}
	}
	out.Result.AddSetAside(text)
	out.SetAside = bytes.TrimSpace(before)
	if more := bytes.TrimSpace(after); len(more) > 0 {
		out.SetAside = append(append(bytes.Clone(out.SetAside), '\n'), more...)
	}
	return out
}

// lines counts the lines that hold something.
func lines(text []byte) int {
	n := 0
	for line := range bytes.Lines(bytes.TrimPrefix(text, byteOrderMark)) {
		if len(bytes.TrimSpace(line)) > 0 {
			n++
		}
	}
	return n
}

func count(n int) string {
	if n == 1 {
		return "1 line"
	}
	return fmt.Sprintf("%d lines", n)
}

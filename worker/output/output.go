// Package output reads the standard output of a program, or of a language model behind it, as a
// result, a text, or a result that is broken. It is pure, and takes time in proportion to the
// output.
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

// Mode selects how an output is read.
type Mode string

const (
	Auto Mode = "auto" // the rules of Read
	JSON Mode = "json" // the whole output is a result, or the attempt has failed
	Text Mode = "text" // the whole output is the body, and nothing in it is looked at
)

// Modes lists how an output may be read.
var Modes = []Mode{Auto, JSON, Text}

// Output is the reading of an output.
type Output struct {
	Result protocol.Result
	// SetAside is the text around the result, in the order of the output. Result.SetAside
	// has its size.
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
//  1. White space is a result without a body, and a warning.
//  2. A JSON object that is the whole output, or else the last block of it, is the result if
//     its keys are those of a result, or of a command alone, and their values are valid. The
//     text around it is set aside.
//  3. An output that tries to be a result is Malformed: see tries, triesText, hides and disguises.
//  4. Any other JSON value that is the whole output is the body.
//  5. Else the output is the body, as text.
//
// The usage of an object in the words of a model (Usage) counts in all of them.
//
// None of them looks at the thoughts of a model, between <think> tags.
func Read(stdout []byte, mode Mode) (Output, error) {
	switch mode {
	case Text:
		text := Output{Result: protocol.ResultFromText(stdout)}
		if len(bytes.TrimSpace(stdout)) == 0 {
			text.Result.AddSetAside(nothing)
		}
		return text, nil
	case JSON:
		return strict(stdout)
	}
	return readAuto(stdout, hidesMax)
}

// nothing is the warning of an output of white space: a print may be missing.
const nothing = "the program has printed nothing"

// readAuto is Read in mode auto. depth bounds the depth to which texts in it are read.
func readAuto(stdout []byte, depth int) (Output, error) {
	text := bytes.TrimPrefix(stdout, byteOrderMark)
	whole := bytes.TrimSpace(text)
	if len(whole) == 0 {
		empty := Output{Result: protocol.ResultFromOutput(nil)}
		empty.Result.AddSetAside(nothing)
		return empty, nil
	}
	doc := &document{raw: stdout, depth: depth}
	if json.Valid(whole) {
		return doc.readValue(span{from: bytes.Index(stdout, whole), to: bytes.Index(stdout, whole) + len(whole)})
	}
	return doc.readText()
}

var byteOrderMark = []byte("\xEF\xBB\xBF")

// strict reads an output that has to be a result.
func strict(stdout []byte) (Output, error) {
	doc := &document{raw: stdout, depth: hidesMax}
	whole := bytes.TrimSpace(bytes.TrimPrefix(stdout, byteOrderMark))
	at := bytes.Index(stdout, whole)
	switch {
	case len(whole) == 0:
		return Output{}, doc.malformed(0, "nothing was printed, and a result is asked for")
	case !json.Valid(whole):
		offset, why := syntax(whole)
		return Output{}, doc.malformed(at+offset, why)
	}
	result, err := doc.decode(whole)
	if err != nil {
		return Output{}, doc.malformed(at, err.Error())
	}
	return Output{Result: result}, nil
}

// place matches the place of a fault in the error of a decoder of an object.
var place = regexp.MustCompile(` \(line (\d+), column (\d+)\)$`)

// document is an output that is being read.
type document struct {
	raw    []byte
	masked []byte // raw, with blanks where a model has thought; of the same length
	depth  int    // of the texts in it that are read
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
		result, err := d.decode(value)
		if err == nil {
			return Output{Result: result}, nil
		}
		if why := d.tries(value, err, true); why != "" {
			return Output{}, d.malformed(at.from, why)
		}
	} else if why := d.triesBelow(value); why != "" {
		return Output{}, d.malformed(at.from, why)
	}
	out := Output{Result: protocol.ResultFromOutput(d.raw)}
	if out.Result.ContentType == protocol.ContentText && value[0] != '"' {
		out.Result.AddSetAside("the output is JSON that no record can hold (a NUL, say); it was taken as text")
	}
	out.Result.Usage = Usage(value) // for instance a model's own answer
	return out, nil
}

// decode reads a JSON object as a result, or as the command of one that has no more.
func (d *document) decode(object []byte) (protocol.Result, error) {
	result, err := decodeResult(object)
	if err != nil && isCommand(object) {
		if bare, refused := decodeResult(slices.Concat([]byte(`{"command":`), object, []byte(`}`))); refused == nil {
			result, err = bare, nil
		}
	}
	if err != nil {
		return result, err
	}
	if why := bodyHides(result, d.depth); why != "" {
		return result, &hidden{why}
	}
	switch {
	case endsBeside(result.Command):
		result.AddSetAside("END in a list ends nothing: the other agents of the list are handed off to")
	case result.Command != nil && !namesNext(result.Command):
		result.AddSetAside("its command names no agent, and hands nothing on: goto is missing")
	}
	return result, nil
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

// isCommand reports whether an object has the fields of a command alone, and names a next step.
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
		result, err := d.decode(d.raw[b.from:b.to])
		switch {
		case err == nil && last:
			return d.surrounded(result, b, blocks), nil
		case err == nil && result.Command != nil:
			return Output{}, d.malformed(b.from, "a result with a command has to be the last block of the output, and another block follows it")
		case err != nil:
			why := d.tries(d.raw[b.from:b.to], err, false)
			if why == "" && last {
				why = failedReport(d.raw[b.from:b.to])
			}
			if why != "" {
				return Output{}, d.malformed(b.from, why)
			}
		}
	}
	if at, why := d.triesText(blocks); why != "" {
		return Output{}, d.malformed(at, why)
	}
	out := Output{Result: protocol.ResultFromOutput(d.raw)}
	if n := logsBefore(d.raw); n > 0 {
		out.Result.AddSetAside(count(n) + " before the text look like a log's, and are part of the body; write logs to standard error")
	}
	if first := bytes.TrimLeft(bytes.TrimPrefix(d.raw, byteOrderMark), " \t\r\n"); first[0] == '{' && len(blocks) == 1 && !blocks[0].value {
		offset, why := syntax(first)
		place := d.malformed(len(d.raw)-len(first)+offset, why)
		out.Result.AddSetAside(fmt.Sprintf("the output begins as JSON and is none (line %d, column %d: %s); it was taken as text", place.Line, place.Column, why))
	}
	return out, nil
}

// surrounded returns a result with the text around it.
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
		if _, err := d.decode(d.raw[other.from:other.to]); other.value && err == nil {
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

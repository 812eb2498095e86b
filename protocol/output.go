package protocol

import (
	"bytes"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/agenthandoff/handoff/protocol/internal/wirejson"
)

// ResultFromOutput makes a result of what a program wrote to its standard
// output. The first rule that fits holds:
//
//  1. Nothing but white space: a result without a body.
//  2. One JSON object, not empty, that DecodeResult and Validate pass: that result.
//  3. One JSON value: the body, as it came, of content type json. If it is an
//     object whose fields are all those of a result, SetAside says why it was not
//     taken for one.
//  4. Else the body is the output as text (ResultFromText).
//
// A JSON string counts under 3 and is of content type text, since that is what
// it holds.
func ResultFromOutput(stdout []byte) Result {
	stdout = bytes.TrimPrefix(stdout, byteOrderMark)
	trimmed := bytes.TrimSpace(stdout)
	if len(trimmed) == 0 {
		return completed(Result{})
	}
	s := wirejson.NewReader(trimmed)
	defer s.Free()
	if s.Read(resultShape, nil); s.Err == nil {
		if trimmed[0] == '{' && !s.HasUnknown() && len(trimmed) > len("{}") {
			r, err := DecodeResult(trimmed)
			if err == nil {
				r.Normalize()
				err = r.Validate()
			}
			if err == nil {
				return r
			}
			return completed(Result{Body: bytes.Clone(trimmed), ContentType: ContentJSON,
				SetAside: fmt.Sprintf("the output looks like a result but is none (%v); it was taken as the body", err)})
		}
		return completed(Result{Body: bytes.Clone(trimmed)})
	}
	return ResultFromText(stdout)
}

// ResultFromText makes a result whose body is what a program wrote, as text, without the line
// breaks at its end. Bytes that are no UTF-8 and NULs become U+FFFD, and SetAside counts them.
func ResultFromText(stdout []byte) Result {
	stdout = bytes.TrimPrefix(stdout, byteOrderMark)
	text, replaced := cleanText(strings.TrimRight(string(stdout), "\r\n"))
	body, err := Marshal(text)
	if err != nil { // clean text always has a JSON form
		panic(err)
	}
	return completed(Result{Body: body, ContentType: ContentText, SetAside: replaced})
}

// AddSetAside adds to what is said of the output that did not go into the result as it came.
func (r *Result) AddSetAside(words string) {
	if r.SetAside != "" {
		words = r.SetAside + "; " + words
	}
	r.SetAside = words
}

func completed(r Result) Result {
	r.Normalize()
	return r
}

// cleanText replaces what the wire refuses, and says how much it was.
func cleanText(s string) (text, replaced string) {
	broken := 0
	for i := 0; i < len(s); {
		r, n := utf8.DecodeRuneInString(s[i:])
		if r == 0 || r == utf8.RuneError && n <= 1 {
			broken++
		}
		i += n
	}
	if broken == 0 {
		return s, ""
	}
	var b strings.Builder
	for _, r := range s { // a range yields U+FFFD for every broken byte
		if r == 0 {
			r = utf8.RuneError
		}
		b.WriteRune(r)
	}
	if broken == 1 {
		return b.String(), "1 byte of the output was NUL or no UTF-8; it was replaced by U+FFFD"
	}
	return b.String(), fmt.Sprintf("%d bytes of the output were NUL or no UTF-8; they were replaced by U+FFFD", broken)
}

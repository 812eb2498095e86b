package protocol

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"regexp"
	"regexp/syntax"
	"slices"
	"strings"
	"sync"
	"unicode/utf8"
)

// Redacted stands where a secret was.
const Redacted = "[redacted]"

// RedactionsMax is how many patterns a Redactor may have.
const RedactionsMax = 256

// secretNames are names whose value is a secret, as programs write them.
const (
	passwordNames = `password|passwd|passphrase|pwd`
	keyNames      = `api[_-]?key|secret[_-]?(?:access[_-]?)?key`
	tokenNames    = `(?:access|auth|refresh|session|security|bearer|api)[_-]?token`
	secretNames   = `(?:` + passwordNames + `|secret|private[_-]?key|` + keyNames + `|` + tokenNames + `)`
	// assignedNames stand before bare words too. Not sharedSecret and not
	// PrivateKey, which are variables in every program that does cryptography.
	assignedNames = `(?:` + passwordNames + `|\bsecret|_secret|` + keyNames + `|` + tokenNames + `)`
)

// DefaultRedactions are the patterns that hold where nothing else is
// configured: credentials that are known by their form, and values of fields
// and assignments that are called passwords and the like. They are in the form
// that NewRedactor reads. UUIDs, digests and prose pass.
var DefaultRedactions = []string{
	// Keys of services, known by their prefix.
	`\b(?:AKIA|ASIA)[A-Z0-9]{16}\b`,
	`\bgh[pousr]_[A-Za-z0-9]{36,}`,
	`\bgithub_pat_[A-Za-z0-9_]{22,}`,
	`\bgl(?:pat|dt|rt|ptt|cbt|oas)-[A-Za-z0-9_=-]{20,}`,
	`\bxox[abeoprs]-[A-Za-z0-9-]{10,}`,
	`\bxapp-[0-9]-[A-Za-z0-9-]{10,}`,
	`hooks\.slack\.com/services/(?P<secret>[A-Za-z0-9/]{20,})`,
	`\bsk-(?:ant|proj|svcacct|admin|or)-[A-Za-z0-9_-]{20,}`,
	`\bsk-[A-Za-z0-9_-]{0,40}?[A-Za-z0-9]{20,}`,
	`\b[sr]k_(?:live|test)_[A-Za-z0-9]{16,}`,
	`\bAIza[A-Za-z0-9_-]{35}`,
	// Tokens and keys, known by their shape.
	`\beyJ[A-Za-z0-9_-]{8,}\.eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}`,
	`(?i)\bbearer\s+(?P<secret>[A-Za-z._~+/-]{0,15}[0-9][A-Za-z0-9._~+/-]{11,}=*|[A-Za-z0-9._~+/-]{32,}=*)`,
	`(?i)\bauthorization\W{1,5}basic\s+(?P<secret>[A-Za-z0-9+/]{8,}=*)`,
	`-----BEGIN (?:[A-Z0-9]+ )*PRIVATE KEY(?: BLOCK)?-----(?:[^-]|-[^-])*-----END (?:[A-Z0-9]+ )*PRIVATE KEY(?: BLOCK)?-----`,
	`-----BEGIN (?:[A-Z0-9]+ )*PRIVATE KEY(?: BLOCK)?-----(?:\s|\\[nr])*(?:[A-Za-z0-9+/=]{24,}(?:\s|\\[nr])*)+[A-Za-z0-9+/=]*`,
	`://[^\s/:@"'<>]*:(?P<secret>[^\s/@"'<>]{3,})@`,
	`(?i)[?&](?:token|sig|signature|x-amz-signature|x-amz-security-token)=(?P<secret>[A-Za-z0-9%+/_.=-]{16,})`,
	// Assignments. In quotes anything goes; bare words must not look like prose
	// or like the name of a variable, unless the assignment is one of an
	// environment or a connection string.
	`(?i)` + secretNames + `["'\\]*\s{0,3}(?:[:=]|=>)\s{0,3}\\*["'](?P<secret>[^"'\\\s]{4,})`,
	`(?i)` + assignedNames + `["'\\]*\s?[:=]\s?(?P<secret>[0-9!@#^+?][^\s"'&;,()\[\]{}<>\x60\\]{3,}|` +
		`[^\s"'&;,()\[\]{}<>\x60\\=:$/.~*%|-][^\s"'&;,()\[\]{}<>\x60\\]*[0-9!@#^+?][^\s"'&;,()\[\]{}<>\x60\\]*)`,
	`(?:PASSWORD|PASSWD|PASSPHRASE|SECRET|TOKEN|_KEY)=(?P<secret>[^\s"'&;,()\[\]{}<>\x60\\=$/.~*%|-][^\s"'&;,()\[\]{}<>\x60\\]{3,})`,
	`(?i)[;&?](?:password|passwd|pwd)=(?P<secret>[^\s"'&;,()\[\]{}<>\x60\\=$/.~*%|][^\s"'&;,()\[\]{}<>\x60\\]*)`,
	// Fields of free data: db_password, clientSecret, API-KEY.
	`key:(?i)` + secretNames + `$`,
}

// Redactor takes secrets out of packages. It is safe for use by many
// goroutines. The zero value redacts nothing. What it does for a body grows with the body's
// length alone, whatever the body says.
type Redactor struct {
	texts  []pattern // matched against text
	names  []pattern // matched against the names of fields in free data
	filter filter
	// unanchored says that there are texts whose matches may begin anywhere.
	unanchored bool
}

// pattern is one expression and where in a match of it the secret stands.
type pattern struct {
	expr  *regexp.Regexp
	group int // the group called secret, 0 for the whole match
	// program is there if a match can only begin where the filter finds a word.
	// Then expr reads one character before the match.
	program *syntax.Prog
}

// DefaultRedactor is the redactor of DefaultRedactions. It is made at the first
// call: that takes milliseconds, and most processes of a command line write nothing.
var DefaultRedactor = sync.OnceValues(func() (*Redactor, error) { return NewRedactor(DefaultRedactions) })

// NewRedactor makes a redactor from regular expressions in Go's syntax. What an
// expression matches is replaced, or only its group called secret if it has
// one. An expression behind "key:" is matched against the names of fields in
// free data instead; the whole text of a field that it matches is replaced. No
// patterns at all redact nothing. Expressions that begin with a few plain words
// cost least. The error is a *Error with CodeInvalid that names the pattern,
// or CodeTooLarge beyond RedactionsMax.
func NewRedactor(patterns []string) (*Redactor, error) {
	if len(patterns) > RedactionsMax {
		return nil, Errorf(CodeTooLarge, "redactions", "lists %d patterns, at most %d are allowed", len(patterns), RedactionsMax)
	}
	r := new(Redactor)
	var nameWords [][]string
	for i, source := range patterns {
		source, isName := strings.CutPrefix(source, "key:")
		p, words, err := newPattern(source, isName)
		if err != nil {
			return nil, Errorf(CodeInvalid, fmt.Sprintf("redactions[%d]", i), "%v", err)
		}
		if isName {
			r.names = append(r.names, p)
			nameWords = append(nameWords, words)
			continue
		}
		r.filter.add(words, len(r.texts), p.program)
		r.texts = append(r.texts, p)
		r.unanchored = r.unanchored || p.program == nil
	}
	for i, words := range nameWords { // numbered behind those for texts
		r.filter.add(words, len(r.texts)+i, nil)
	}
	return r, nil
}

func newPattern(source string, isName bool) (p pattern, words []string, err error) {
	if p.expr, err = regexp.Compile(source); err != nil {
		return p, nil, fmt.Errorf("is no regular expression: %w", err)
	}
	if p.expr.MatchString("") {
		return p, nil, errors.New("matches the empty text, and so everywhere")
	}
	words, leading := requiredWords(source)
	if leading && !isName {
		// It reads one character before the match. An expression that cannot be put
		// into brackets is tried everywhere.
		led, err := regexp.Compile(`(?s:.)(?:` + source + `)`)
		if program := compiled(source); err == nil && program != nil {
			p.expr, p.program = led, program
		}
	}
	p.group = max(p.expr.SubexpIndex("secret"), 0)
	return p, words, nil
}

// Redact replaces the secrets in a package, as EncodePackage wrote it, by
// Redacted, and returns how many there were. It reads the words and the free
// data of a package and leaves alone what gives it its structure: ids, names of
// agents, keys, tickets, instants, enumerations, policies, the output schema,
// and all numbers. Apart from the secrets every byte stays as it is; without
// any, the result is body itself. Redacting twice finds nothing the second time.
func (r *Redactor) Redact(body []byte) ([]byte, int) { return r.redact(body, redactPlan) }

// redact replaces the secrets that a plan looks for in JSON.
func (r *Redactor) redact(body []byte, p *plan) ([]byte, int) {
	if len(r.texts)+len(r.names) == 0 || !r.filter.any(body) && !unusualEscape(body) {
		return body, 0
	}
	w := redaction{Redactor: r, in: body, allowance: allowanceOf(len(body))}
	w.value(p, false, false)
	if w.count == 0 {
		return body, 0
	}
	return append(w.out, body[w.copied:]...), w.count
}

// span is a range of bytes.
type span struct{ start, end int }

const (
	// windowBytes is how much of a text behind a word is matched against its patterns at
	// first. A match that goes up to its end is matched again with more.
	windowBytes = 4 << 10
	// matchedLeast, and a sixteenth of the body, is how much text of one body is matched
	// against patterns in all, each pattern counted by itself: a second's worth for the
	// largest body. Texts beyond it are taken for secrets as a whole.
	matchedLeast = 2 << 20
	// calledMax is the longest name of a secret that is found at the end of another one.
	calledMax = 64
)

// allowance is how much more text of a body may be matched.
type allowance int

func allowanceOf(body int) allowance { return allowance(matchedLeast + body/16) }

// spend tells whether so much more text may be matched.
func (a *allowance) spend(n int) bool {
	*a -= allowance(n)
	return *a >= 0
}

// secretsIn finds the secrets in a text, in order and without overlaps, and returns what is
// left of the allowance. Patterns
// that match anywhere are tried if the filter finds them in searched. Every part of a
// text is matched against a pattern a few times at most, however many of its words are
// there.
func (r *Redactor) secretsIn(text, searched []byte, a allowance) ([]span, allowance) {
	m := matching{allowance: a, text: text}
	for i, windows := range r.windows(text) {
		for _, w := range windows {
			if !m.match(&r.texts[i], w) {
				return []span{{0, len(text)}}, m.allowance
			}
		}
	}
	if !r.unanchored {
		return merge(m.found), m.allowance
	}
	which := r.filter.in(searched)
	for i := range r.texts {
		if p := &r.texts[i]; which.has(i) && p.program == nil && !m.matchAnywhere(p) {
			return []span{{0, len(text)}}, m.allowance
		}
	}
	return merge(m.found), m.allowance
}

// windows are the parts of a text in which the matches of each pattern begin, in order
// and apart from each other. Nil where there are none.
func (r *Redactor) windows(text []byte) (all [][]span) {
	r.filter.each(text, func(at, end int, u *use) bool {
		if u.pattern >= len(r.texts) || r.texts[u.pattern].program == nil {
			return true
		}
		until := min(end+windowBytes, len(text))
		if all != nil {
			if n := len(all[u.pattern]); n > 0 && at < all[u.pattern][n-1].end {
				all[u.pattern][n-1].end = until
				return true
			}
		}
		if mayFollow(r.texts[u.pattern].program, u.after, text[end:]) {
			if all == nil {
				all = make([][]span, len(r.texts))
			}
			all[u.pattern] = append(all[u.pattern], span{at, until})
		}
		return true
	})
	return all
}

// matching looks for the secrets in one text.
type matching struct {
	allowance
	text  []byte
	found []span
}

// match adds what a pattern finds in a part of the text. What a secret is called by may
// be the end of another one's value: the search goes on there. False is that the allowance
// is used up.
func (m *matching) match(p *pattern, w span) bool {
	for at := w.start; at < w.end; {
		from, before := lead(m.text[:w.end], at)
		match := p.expr.FindSubmatchIndex(from)
		if match == nil {
			return m.spend(w.end - at)
		}
		end := before + match[1]
		if !m.spend(end - at) {
			return false
		}
		_, read := utf8.DecodeRune(from[match[0]:]) // the character before the match
		at = before + match[0] + read
		if end == w.end && end < len(m.text) { // it may go on
			w.end = min(end+end-at+windowBytes, len(m.text))
			continue
		}
		if p.group == 0 {
			m.add(at, end)
			at = end
			continue
		}
		if match[2*p.group] >= 0 {
			value := span{before + match[2*p.group], before + match[2*p.group+1]}
			m.add(value.start, value.end)
			at = max(at, value.start-1, value.end-calledMax)
		}
		at++
	}
	return true
}

// matchAnywhere is match for a pattern whose matches may begin anywhere.
func (m *matching) matchAnywhere(p *pattern) bool {
	if !m.spend(len(m.text)) {
		return false
	}
	for _, match := range p.expr.FindAllSubmatchIndex(m.text, -1) {
		m.add(match[2*p.group], match[2*p.group+1])
	}
	return true
}

// lead is the text from the character before at on, and how many bytes of text
// were left out: -1 where at is the beginning, and a line is begun before it.
func lead(text []byte, at int) (from []byte, before int) {
	if at == 0 {
		return append([]byte{'\n'}, text...), -1
	}
	_, size := utf8.DecodeLastRune(text[:at])
	return text[at-size:], at - size
}

func (m *matching) add(start, end int) {
	if start >= 0 && start < end && !isPlaceholder(m.text[start:end]) {
		m.found = append(m.found, span{start, end})
	}
}

// merge sorts spans and joins those that overlap.
func merge(found []span) []span {
	slices.SortFunc(found, func(a, b span) int { return cmp.Compare(a.start, b.start) })
	merged := found[:0]
	for _, s := range found {
		if n := len(merged); n > 0 && s.start < merged[n-1].end {
			merged[n-1].end = max(merged[n-1].end, s.end)
			continue
		}
		merged = append(merged, s)
	}
	return merged
}

// secretName tells whether the name of a field says that its value is a secret.
func (r *Redactor) secretName(name []byte) bool {
	if len(r.names) == 0 {
		return false
	}
	which := r.filter.in(name)
	for i, p := range r.names {
		if which.has(len(r.texts)+i) && p.expr.Match(name) {
			return true
		}
	}
	return false
}

// isPlaceholder tells whether a value only stands for a secret: what was
// redacted before, stars, the name of a variable.
func isPlaceholder(value []byte) bool {
	return len(value) == 0 || bytes.Contains(value, []byte(Redacted)) || len(bytes.Trim(value, "*xX.")) == 0 ||
		value[0] == '$' || bytes.HasPrefix(value, []byte("{{")) || bytes.HasPrefix(value, []byte("%(")) ||
		value[0] == '<' && value[len(value)-1] == '>' ||
		strings.HasPrefix(Redacted, string(value)) // cut off by a pattern that stops at brackets
}

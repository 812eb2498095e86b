package index

import (
	"bytes"
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/text/unicode/norm"

	"github.com/agenthandoff/handoff/protocol"
)

const (
	wordBytesMax   = 64 // longer ones are cut, in texts and in questions alike
	wordsMax       = 32 // in a question
	prefixRunesMin = 2  // of a word that ends in *
)

// A word, in texts and in questions, is a sequence of letters and digits, without case and
// accents; in scripts without spaces, each character. The search engine gets words with spaces
// between them and needs no rules of its own.

// wordsOf calls fn with each word of a text.
func wordsOf(text string, fn func(word []byte)) {
	if !isASCII(text) {
		text = norm.NFKD.String(text)
	}
	var word []byte
	end := func() {
		if len(word) > 0 {
			fn(word)
			word = word[:0]
		}
	}
	for _, r := range text {
		switch {
		case r >= 'a' && r <= 'z':
			if len(word) < wordBytesMax {
				word = append(word, byte(r))
			}
		case r == ' ':
			end()
		case unicode.Is(unicode.Mn, r): // an accent, after the letter that has it
		case !unicode.IsLetter(r) && !unicode.IsDigit(r):
			end()
		case r >= 0x0e00 && unicode.In(r, unicode.Han, unicode.Hiragana, unicode.Katakana, unicode.Thai, unicode.Lao, unicode.Khmer, unicode.Myanmar):
			end()
			fn(utf8.AppendRune(nil, r))
		default:
			if r = unicode.ToLower(r); len(word)+utf8.RuneLen(r) <= wordBytesMax {
				word = utf8.AppendRune(word, r)
			}
		}
	}
	end()
}

func isASCII(text string) bool {
	for i := range len(text) {
		if text[i] >= utf8.RuneSelf {
			return false
		}
	}
	return true
}

// searchText returns texts in the form for the search engine: each word once, since the engine
// keeps no counts.
func searchText(texts ...string) string {
	all := []byte{' '}
	for _, text := range texts {
		wordsOf(text, func(word []byte) {
			start := len(all) - 1 // the space before
			all = append(append(all, word...), ' ')
			if bytes.Contains(all[:start+1], all[start:]) {
				all = all[:start+1]
			}
		})
	}
	return string(bytes.TrimSpace(all))
}

// searchQuery is the query of Filter.Text for the search engine. Its words have letters and digits
// only, so that the engine's query language cannot be injected.
func searchQuery(text string) (string, error) {
	var terms []string
	for _, given := range strings.Fields(text) {
		from := len(terms)
		wordsOf(given, func(word []byte) { terms = append(terms, `"`+string(word)+`"`) })
		if last := len(terms) - 1; strings.HasSuffix(given, "*") && last >= from {
			if utf8.RuneCountInString(terms[last])-2 < prefixRunesMin {
				return "", protocol.Errorf(protocol.CodeInvalid, "filter.text", "a beginning of a word has at least %d letters before its *", prefixRunesMin)
			}
			terms[last] += "*"
		}
	}
	switch {
	case len(terms) == 0:
		return "", protocol.Errorf(protocol.CodeInvalid, "filter.text", "has no word to search for: words are of letters and digits")
	case len(terms) > wordsMax:
		return "", protocol.Errorf(protocol.CodeTooLarge, "filter.text", "has %d words, at most %d are allowed", len(terms), wordsMax)
	}
	return strings.Join(terms, " AND "), nil
}

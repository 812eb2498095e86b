package protocol

import (
	"regexp/syntax"
	"slices"
	"unicode/utf8"
)

// A word alone is no secret: people write of passwords and tokens. To try an
// expression at such a word costs a microsecond, and fails within a character
// or two. So its program is followed from behind the word for as long as that
// is cheap, and the expression tried only if it may match then.

const (
	afterRunesMax        = 32 // that are read before the expression is tried
	afterInstructionsMax = 64 // that are followed at once
)

// compiled is the program of an expression, nil if there is none.
func compiled(expr string) *syntax.Prog {
	tree, err := syntax.Parse(expr, syntax.Perl)
	if err != nil {
		return nil
	}
	program, err := syntax.Compile(tree.Simplify())
	if err != nil {
		return nil
	}
	return program
}

// behind is where a program may stand when it has read a word: the
// instructions of which one reads the next character. None if that is not
// known.
func behind(program *syntax.Prog, word string) []uint32 {
	if program == nil {
		return nil
	}
	var room [2][]uint32
	for i := range room {
		room[i] = make([]uint32, 0, len(program.Inst))
	}
	at, ended := reach(program, room[0], uint32(program.Start))
	for i := 0; i < len(word) && !ended; i++ {
		c := fold(word[i])
		at, ended = read(program, room[(i+1)%2], at, rune(c), rune(c&^0x20)) // the filter takes both for the same
	}
	if ended {
		return nil
	}
	return slices.Clone(slices.DeleteFunc(at, func(pc uint32) bool { return len(program.Inst[pc].Rune) == 0 }))
}

// mayFollow tells whether a match may go on with text when the program stands
// at these instructions. It may say yes where there is no match, never no where
// there is one.
func mayFollow(program *syntax.Prog, at []uint32, text []byte) bool {
	if len(at) == 0 {
		return true
	}
	var room [2][afterInstructionsMax]uint32
	for i := 0; i < afterRunesMax && len(at) > 0; i++ {
		char, size := utf8.DecodeRune(text)
		if size == 0 {
			return false
		}
		text = text[size:]
		next, ended := read(program, room[i%2][:0], at, char, char)
		if ended {
			return true
		}
		at = next
	}
	return len(at) > 0
}

// read adds to next where a program may stand when one of the instructions at
// has read a character, this or that one. ended says that it has a match then,
// or that next is full.
func read(program *syntax.Prog, next, at []uint32, this, that rune) (_ []uint32, ended bool) {
	for _, pc := range at {
		if in := &program.Inst[pc]; in.MatchRune(this) || this != that && in.MatchRune(that) {
			if next, ended = reach(program, next, in.Out); ended {
				return next, true
			}
		}
	}
	return next, false
}

// reach adds to set an instruction and what comes after it without a character
// being read. Edges of words, lines and texts are taken to be wherever they
// must be. ended is as for read.
func reach(program *syntax.Prog, set []uint32, pc uint32) (_ []uint32, ended bool) {
	if slices.Contains(set, pc) {
		return set, false
	}
	if len(set) == cap(set) {
		return set, true
	}
	set = append(set, pc)
	switch in := &program.Inst[pc]; in.Op {
	case syntax.InstMatch:
		return set, true
	case syntax.InstAlt, syntax.InstAltMatch:
		if set, ended = reach(program, set, in.Out); ended {
			return set, true
		}
		return reach(program, set, in.Arg)
	case syntax.InstCapture, syntax.InstEmptyWidth, syntax.InstNop:
		return reach(program, set, in.Out)
	}
	return set, false
}

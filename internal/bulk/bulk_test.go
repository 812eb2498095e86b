package bulk

import (
	"errors"
	"io"
	"slices"
	"strings"
	"testing"

	"github.com/agenthandoff/handoff/protocol"
)

func TestEachLine(t *testing.T) {
	long := strings.Repeat("x", 100<<10) // longer than the reader's buffer
	var numbers []int
	var lines []string
	err := eachLine(strings.NewReader("one\n\n  \t\r\nfour\r\n"+long+"\nlast"), func(n int, line []byte) error {
		numbers, lines = append(numbers, n), append(lines, strings.TrimSpace(string(line)))
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if want := []int{1, 4, 5, 6}; !slices.Equal(numbers, want) {
		t.Errorf("lines %v, want %v", numbers, want)
	}
	if want := []string{"one", "four", long, "last"}; !slices.Equal(lines, want) {
		t.Errorf("got %d lines of other text", len(lines))
	}
}

// endless is a file without a line end.
type endless struct{}

func (endless) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = 'x'
	}
	return len(p), nil
}

func TestLineLimit(t *testing.T) {
	count := func(from io.Reader) (n int, err error) {
		err = eachLine(from, func(int, []byte) error { n++; return nil })
		return n, err
	}
	most := io.LimitReader(endless{}, protocol.PackageBytesMax)
	if n, err := count(io.MultiReader(strings.NewReader("{}\n"), most, strings.NewReader("\r\n{}"))); n != 3 || err != nil {
		t.Errorf("%d lines, %v", n, err)
	}
	n, err := count(io.MultiReader(strings.NewReader("{}\n"), endless{}))
	var line *LineError
	if n != 1 || !errors.As(err, &line) || line.N != 2 || !errors.Is(err, &protocol.Error{Code: protocol.CodeTooLarge}) {
		t.Errorf("after %d lines: %v", n, err)
	}
}

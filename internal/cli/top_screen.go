package cli

import (
	"errors"
	"io"
	"os"
	"strings"

	"golang.org/x/term"
)

// What a terminal understands. A frame is drawn over the last one, each line
// cleared behind its end, so that nothing flickers.
const (
	screenOpen  = "\x1b[?1049h\x1b[?25l" // a page of our own, without a cursor
	screenClose = "\x1b[?25h\x1b[?1049l"
	frameBegin  = "\x1b[H"
	lineEnd     = "\x1b[K\r\n"
	frameEnd    = "\x1b[J"
)

// screen is a terminal that top draws on.
type screen struct {
	out  *os.File
	in   *os.File // with raw keys, if it is a terminal too
	was  *term.State
	ends chan struct{} // closed when a key ends it

	paint func(line string) styled
}

// openScreen takes the terminal, if text goes to one; else it is nil.
func (a *app) openScreen() *screen {
	out, ok := a.out.(*os.File)
	if !ok || !a.terminal || !a.text() || a.env("TERM") == "dumb" {
		return nil
	}
	s := &screen{out: out, ends: make(chan struct{}), paint: a.topLine}
	if in, ok := a.in.(*os.File); ok && term.IsTerminal(int(in.Fd())) {
		if was, err := term.MakeRaw(int(in.Fd())); err == nil {
			s.in, s.was = in, was
			// Nothing can call back a read of a terminal: this ends with the process.
			go func() { watchKeys(in, s.ends) }()
		}
	}
	_, _ = io.WriteString(out, screenOpen) // the first frame would fail as well, and say so
	return s
}

// close gives the terminal back as it was.
func (s *screen) close() error {
	_, err := io.WriteString(s.out, screenClose)
	if s.was != nil {
		err = errors.Join(err, term.Restore(int(s.in.Fd()), s.was))
	}
	return err
}

// draw shows a picture, fit to the terminal as it is at this moment.
func (s *screen) draw(v topView) error {
	width, height, err := term.GetSize(int(s.out.Fd()))
	if err != nil || width < 1 || height < 1 {
		width, height = 80, 24
	}
	lines := topLines(v, width, height)
	for i, line := range lines {
		lines[i] = string(s.paint(line))
	}
	_, err = io.WriteString(s.out, frame(lines))
	return err
}

// frame is one drawing, in one write. The last line has no line end: it would
// move everything up.
func frame(lines []string) string {
	return frameBegin + strings.Join(lines, lineEnd) + "\x1b[K" + frameEnd
}

// watchKeys closes ends at q or Q, at Ctrl-C and Ctrl-D (which a raw terminal makes
// keys like others), and where there are no keys any more.
func watchKeys(in io.Reader, ends chan<- struct{}) {
	defer close(ends)
	const ctrlC, ctrlD = 3, 4
	key := make([]byte, 1)
	for {
		if _, err := in.Read(key); err != nil {
			return
		}
		switch key[0] {
		case 'q', 'Q', ctrlC, ctrlD:
			return
		}
	}
}

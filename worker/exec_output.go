package worker

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"strings"
	"sync"

	"github.com/agenthandoff/handoff/protocol"
	"github.com/agenthandoff/handoff/protocol/redact"
)

// limited keeps what is written, up to most bytes, and says when there is more.
// It goes on swallowing then: the writer is to be ended, not blocked.
type limited struct {
	most int64
	buf  bytes.Buffer
	over chan struct{}
	once sync.Once
}

func (l *limited) Write(b []byte) (int, error) {
	if int64(l.buf.Len()+len(b)) > l.most {
		l.once.Do(func() { close(l.over) })
		return len(b), nil
	}
	return l.buf.Write(b)
}

func (l *limited) isOver() bool {
	select {
	case <-l.over:
		return true
	default:
		return false
	}
}

const (
	// lineBytesMax is how much of a line of standard error is one line of the log.
	lineBytesMax = 8 << 10
	// tailLines and tailBytesMax are what a failure's message quotes.
	tailLines    = 10
	tailBytesMax = 2 << 10
	// keptLines and keptBytesMax are what is kept for that: secrets are taken out
	// before the last lines are, for half a key is not known for one.
	keptLines    = 200
	keptBytesMax = 64 << 10
)

// lines logs what is read line by line and keeps the last of them.
type lines struct {
	log      *slog.Logger
	redactor *redact.Redactor
	kept     []string
	bytes    int // of kept
}

func (l *lines) readFrom(r io.Reader) {
	reader := bufio.NewReaderSize(r, lineBytesMax)
	for {
		line, err := reader.ReadSlice('\n')
		if text := printableLine(line); text != "" {
			l.log.Info("stderr", "line", text)
			l.keep(text)
		}
		if err != nil && !errors.Is(err, bufio.ErrBufferFull) {
			return
		}
	}
}

// printableLine is a line as the log has it; empty where it holds nothing.
func printableLine(line []byte) string {
	text := strings.TrimRight(string(line), "\r\n")
	if strings.TrimSpace(text) == "" {
		return ""
	}
	return protocol.Printable(strings.ToValidUTF8(text, "\uFFFD"))
}

// logLine logs a line of what a program has printed, up to lineBytesMax of it.
func (p *program) logLine(what string, line []byte) {
	if text := printableLine(line[:min(len(line), lineBytesMax)]); text != "" {
		p.log.Info(what, "line", text)
	}
}

func (l *lines) keep(line string) {
	l.kept = append(l.kept, line)
	l.bytes += len(line)
	for len(l.kept) > keptLines || l.bytes > keptBytesMax {
		l.bytes -= len(l.kept[0])
		l.kept = l.kept[1:]
	}
}

// last returns the last line, without its surrounding space.
func (l *lines) last() string {
	if len(l.kept) == 0 {
		return ""
	}
	return protocol.CutText(strings.TrimSpace(l.kept[len(l.kept)-1]), tailBytesMax)
}

// tail returns the last lines without secrets, the end of them if they are long. A program
// that was ended has last lines too: no context ends this.
func (l *lines) tail() string {
	text, err := l.redactor.Text(context.Background(), strings.Join(l.kept, "\n"))
	if err != nil {
		return ""
	}
	kept := strings.Split(text, "\n")
	text = strings.Join(kept[max(0, len(kept)-tailLines):], "\n")
	if cut := len(text) - tailBytesMax; cut > 0 {
		text = "…" + strings.ToValidUTF8(text[cut:], "")
	}
	return text
}

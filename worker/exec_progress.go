package worker

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/agenthandoff/handoff/protocol"
	"github.com/agenthandoff/handoff/worker/output"
)

const (
	// progressEvery is how often a program's progress file is read, and so the most
	// reports that it makes: each is an append to the ledger.
	progressEvery = time.Second
	// progressTailBytes is the longest line that is read, and how much of the end of a usage
	// file is.
	progressTailBytes = protocol.ProgressBytesMax + 1024
	// progressPassBytes is how much of a progress file is read at a time.
	progressPassBytes = 4 << 20
	// lastReportTimeout bounds the reports of a program that has ended.
	lastReportTimeout = 5 * time.Second
)

// followProgress reports the next lines of a program until ended is closed, and once more
// then. Every request for more time is made; of the reports read at a time the last is
// appended, which is as much as a gauge needs. Lines that cannot be read are logged once.
func (h Handoff) followProgress(ctx context.Context, next func(end bool) ([]string, error), ended <-chan struct{}) {
	ticker := time.NewTicker(progressEvery)
	defer ticker.Stop()
	unread := ""
	for last := false; !last; {
		select {
		case <-ended:
			last = true
		case <-ticker.C:
		}
		lines, err := next(last)
		if err != nil && err.Error() != unread {
			unread = err.Error()
			h.logger().Warn("progress file not read", "err", err)
		}
		if len(lines) == 0 {
			continue
		}
		if last {
			h.reportLast(ctx, lines)
		} else {
			h.reportLines(ctx, lines)
		}
	}
}

// reportLast reports the lines that a program wrote just before it ended.
func (h Handoff) reportLast(ctx context.Context, lines []string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), lastReportTimeout)
	defer cancel()
	h.reportLines(ctx, lines)
}

func (h Handoff) reportLines(ctx context.Context, lines []string) {
	report := ""
	for _, line := range lines {
		by, reason, ok := extensionFromLine(line)
		if !ok {
			report = line
			continue
		}
		if err := h.Extend(ctx, by, reason); err != nil && ctx.Err() == nil {
			h.logger().Warn("work not extended", "err", err)
		}
	}
	if report == "" {
		return
	}
	if err := h.Progress(ctx, progressFromLine(report)); err != nil && ctx.Err() == nil {
		h.logger().Warn("progress not reported", "err", err)
	}
}

// growing reads a file that a program appends to, or writes anew.
type growing struct {
	path string
	at   int64  // where the next read begins
	seen []byte // the end of the part that was read: a file that differs there was written anew
}

// seenBytes is how much of a file is compared to find that it was written anew.
const seenBytes = 64

// next returns the lines that are new, at most progressPassBytes of them; with end also a last
// one that has no newline.
func (g *growing) next(end bool) ([]string, error) {
	file, err := openRegular(g.path)
	if errors.Is(err, os.ErrNotExist) {
		g.at, g.seen = 0, nil
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer file.Close()
	before := make([]byte, len(g.seen))
	if _, err := file.ReadAt(before, g.at-int64(len(before))); err != nil || !bytes.Equal(before, g.seen) {
		g.at, g.seen = 0, nil
	}
	info, err := file.Stat()
	if err != nil || info.Size() <= g.at {
		return nil, err
	}
	body := make([]byte, min(info.Size()-g.at, progressPassBytes))
	n, err := file.ReadAt(body, g.at)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	whole := bytes.LastIndexByte(body[:n], '\n') + 1
	if end || whole == 0 && n == progressPassBytes {
		whole = n
	}
	body = body[:whole]
	g.at += int64(whole)
	g.seen = append(g.seen, body...)
	g.seen = bytes.Clone(g.seen[max(0, len(g.seen)-seenBytes):])
	var lines []string
	for line := range bytes.Lines(body) {
		if line = bytes.TrimSpace(line); len(line) > 0 && len(line) <= progressTailBytes {
			lines = append(lines, string(line))
		}
	}
	return lines, nil
}

// lastLine is the last line of a file that is complete; empty if there is none.
// At most progressTailBytes of the file are read.
func lastLine(path string) (string, error) {
	file, err := openRegular(path)
	if errors.Is(err, os.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	defer file.Close()
	if info, err := file.Stat(); err == nil && info.Size() > progressTailBytes {
		_, _ = file.Seek(-progressTailBytes, io.SeekEnd)
	}
	body, err := io.ReadAll(io.LimitReader(file, progressTailBytes))
	end := bytes.LastIndexByte(body, '\n')
	if err != nil || end < 0 {
		return "", err
	}
	text := strings.TrimSpace(string(body[:end]))
	return strings.TrimSpace(text[strings.LastIndexByte(text, '\n')+1:]), nil
}

// extensionFromLine reads {"extend_ms":600000,"reason":"…"}.
func extensionFromLine(line string) (by time.Duration, reason string, ok bool) {
	var e struct {
		ExtendMS int64  `json:"extend_ms"`
		Reason   string `json:"reason"`
	}
	if !strings.HasPrefix(line, "{") || json.Unmarshal([]byte(line), &e) != nil || e.ExtendMS <= 0 {
		return 0, "", false
	}
	return millis(min(e.ExtendMS, protocol.ExtensionMaxMS)), e.Reason, true
}

// progressFromLine reads {"percent":40,"message":"…"}, "40 parsing", "40% parsing"
// and "parsing". A line that breaks the rules of a report is made to fit: a
// program does not fail for a report of its progress.
func progressFromLine(line string) protocol.Progress {
	var p protocol.Progress
	if strings.HasPrefix(line, "{") && json.Unmarshal([]byte(line), &p) == nil && p.Validate() == nil {
		return p
	}
	word, rest, _ := strings.Cut(line, " ")
	if percent, err := strconv.ParseFloat(strings.TrimSuffix(word, "%"), 64); err == nil && percent >= 0 && percent <= 100 {
		p = protocol.Progress{Percent: percent, Message: strings.TrimSpace(rest)}
	} else {
		p = protocol.Progress{Message: line}
	}
	p.Message = protocol.CutText(strings.ToValidUTF8(strings.ReplaceAll(p.Message, "\x00", ""), "\uFFFD"), protocol.ProgressMessageBytesMax)
	return p
}

// followUsage reports the last line of a program's usage file after each change, until ctx ends.
func (h Handoff) followUsage(ctx context.Context, path string) {
	last, unread := "", ""
	atEach(ctx, progressEvery, func() {
		line, err := lastLine(path)
		if err != nil && err.Error() != unread {
			unread = err.Error()
			h.logger().Warn("usage file not read", "err", err)
		}
		if line == "" || line == last {
			return
		}
		last = line
		usage := output.LineUsage([]byte(line))
		if usage == nil {
			h.logger().Warn("usage not reported", "why", "it is no usage", "line", protocol.Printable(protocol.CutText(line, 512)))
		} else if err := h.Spent(ctx, *usage); err != nil && ctx.Err() == nil {
			h.logger().Warn("usage not reported", "err", err)
		}
	})
}

// withUsage adds the program's usage to its result, or to its other outcome: from its usage
// file, and from its output.
func (p *program) withUsage(ctx context.Context, h Handoff, usageFile string, result protocol.Result, err error) (protocol.Result, error) {
	usage := p.usage(usageFile)
	if usage == nil {
		return result, err
	}
	var failure *Failure
	var back *rollBackError
	switch {
	case err == nil:
		if result.Usage != nil {
			*usage = usage.Max(*result.Usage)
		}
		result.Usage = usage
	case errors.As(err, &failure):
		failure.Usage = usage
	case errors.As(err, &back) && back.partial != nil:
		back.partial.Usage = usage
	default:
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), lastReportTimeout)
		defer cancel()
		if err := h.Spent(ctx, *usage); err != nil {
			h.logger().Warn("usage not reported", "err", err)
		}
	}
	return result, err
}

// usage returns the usage that a program has reported; nil is none.
func (p *program) usage(path string) *protocol.Usage {
	var said *protocol.Usage
	if line, err := lastLine(path); err == nil && line != "" {
		said = output.LineUsage([]byte(line))
	}
	if p.stdout.isOver() || p.cfg.Output == output.Text {
		return said
	}
	printed := output.Usage(p.stdout.buf.Bytes())
	if said == nil || printed == nil {
		return cmp.Or(said, printed)
	}
	most := said.Max(*printed)
	return &most
}

package worker

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/agenthandoff/handoff/protocol"
)

const (
	// progressEvery is how often a program's progress file is looked at, and so
	// the most reports that it makes: each is an append to the ledger.
	progressEvery = time.Second
	// progressTailBytes is how much of the end of the file is read.
	progressTailBytes = protocol.ProgressBytesMax + 1024
)

// followProgress reports the last line of a file, whenever it has another one,
// until ctx ends. What is not read is logged once.
func (h Handoff) followProgress(ctx context.Context, path string) {
	ticker := time.NewTicker(progressEvery)
	defer ticker.Stop()
	for last, unread := "", ""; ; {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		line, err := lastLine(path)
		if err != nil && err.Error() != unread {
			unread = err.Error()
			h.logger().Warn("progress file not read", "err", err)
		}
		if line == "" || line == last {
			continue
		}
		last = line
		if by, reason, ok := extensionFromLine(line); ok {
			if err := h.Extend(ctx, by, reason); err != nil && ctx.Err() == nil {
				h.logger().Warn("work not extended", "err", err)
			}
			continue
		}
		if err := h.Progress(ctx, progressFromLine(line)); err != nil && ctx.Err() == nil {
			h.logger().Warn("progress not reported", "err", err)
		}
	}
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
// and "parsing". What breaks the rules of a report is made to fit: a program
// that tells how far it is does not fail for it.
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

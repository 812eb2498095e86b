package cli

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
	"time"
)

// TestLogFlood: a complaint that comes again and again is left out after a while, and
// counted; others are not, nor is what is no complaint.
func TestLogFlood(t *testing.T) {
	var out bytes.Buffer
	now := time.Now()
	log := slog.New(newRateLimitHandler(slog.NewTextHandler(&out, nil), func() time.Time { return now })).With("agent", "a")
	for i := range 100 {
		log.Error("entry does not decode", "seq", i)
		log.Info("handoff declined", "seq", i)
	}
	log.WithGroup("g").Warn("pull failed")
	now = now.Add(sameSpan)
	log.Error("entry does not decode", "seq", 100)
	text := out.String()
	if n := strings.Count(text, "entry does not decode"); n != sameMost+1 {
		t.Errorf("said %d times, want %d and one later", n, sameMost)
	}
	if !strings.Contains(text, "seq=100 left_out=80") || strings.Count(text, "left_out") != 1 {
		t.Errorf("the rest is not counted:\n%s", text)
	}
	if strings.Count(text, "handoff declined") != 100 || !strings.Contains(text, "pull failed") {
		t.Error("what is no such complaint was left out")
	}
}

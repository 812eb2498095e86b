//go:build proof

package hostile

import (
	"strings"
	"sync"
	"testing"
	"time"
)

// lineCount counts lines of logs by what they say.
type lineCount struct {
	mu    sync.Mutex
	words map[string]int
	bytes int
}

func (c *lineCount) Write(text []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.bytes += len(text)
	for line := range strings.Lines(string(text)) {
		_, rest, _ := strings.Cut(line, "msg=")
		if strings.HasPrefix(rest, `"`) {
			rest, _, _ = strings.Cut(rest[1:], `"`)
		} else {
			rest, _, _ = strings.Cut(rest, " ")
		}
		c.words[rest]++
	}
	return len(text), nil
}

// check fails where something was said for each message. Of each of the five processes
// the log has 20 lines a minute of one sort.
func (c *lineCount) check(t *testing.T, took time.Duration) {
	t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	most := 5 * 20 * (int(took.Minutes()) + 2)
	for words, n := range c.words {
		if n > most && words != "handoff completed" {
			t.Errorf("%d lines say %q, at most %d were to", n, words, most)
		}
	}
	t.Logf("%d KB of logs in %v", c.bytes>>10, took.Round(time.Second))
}

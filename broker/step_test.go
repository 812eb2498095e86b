package broker_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestBrokerAppliesNothing: the core applies the events of an append, once, and the broker
// stores its step. It applies them itself where a redaction has changed them, and only there.
func TestBrokerAppliesNothing(t *testing.T) {
	applies := regexp.MustCompile(`lifecycle\.(Apply|ApplyAll|StepOf)\(`)
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]int{}
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		source, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if n := len(applies.FindAll(source, -1)); n > 0 {
			found[file] = n
		}
	}
	if len(found) != 1 || found["broker.go"] != 1 {
		t.Errorf("events are applied in %v, want once in broker.go (redactDraft)", found)
	}
}

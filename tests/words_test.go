package tests

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// neutral are the rooms, with what is below them, whose words reach clients that have no shell.
var neutral = []string{"api", "broker", "internal/brief", "internal/doctor", "internal/dossier", "internal/explain", "internal/gateway", "internal/index",
	"internal/lifecycle", "internal/record", "internal/schedule", "internal/schema", "internal/supervisor", "internal/telemetry", "protocol", "worker"}

// operators are the rooms of these whose words reach only the operator of an engine, or a person who may
// copy a command from the page.
var operators = []string{"internal/audit", "internal/backup", "internal/jetstream", "internal/gateway/page"}

// shellWords is a command of handoff, or a flag. Commands of the server's own tool are no
// words of Handoff.
var (
	shellWords = regexp.MustCompile("(?i)handoff (ack|agents|answer|audit|await|backup|bench|cancel|claim|complete|conversation|dead|demo|dev|dismiss|doctor|escalate|fail|gateway|heartbeat|history|inbox|index|list|lock|progress|release|reroute|restore|result|rollback|schema|show|stats|status|submit|supervise|tail|take|top|topology|tree|unlock|validate|vars|wait|why|work|workflow)\\b|[ (`]--[a-z]")
	natsWords  = regexp.MustCompile(`nats (stream|consumer) [^;]*`)
)

// TestNoShellWords: each gateway has its own words for an action, and a shell is but one.
func TestNoShellWords(t *testing.T) {
	for _, room := range neutral {
		files := 0
		err := filepath.WalkDir(filepath.Join("..", room), func(path string, entry fs.DirEntry, err error) error {
			if err == nil && entry.IsDir() && slices.Contains(operators, strings.TrimPrefix(filepath.ToSlash(path), "../")) {
				return fs.SkipDir
			}
			if err != nil || entry.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			files++
			file, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
			if err != nil {
				return err
			}
			ast.Inspect(file, func(n ast.Node) bool {
				if lit, ok := n.(*ast.BasicLit); ok && shellWords.MatchString(natsWords.ReplaceAllString(lit.Value, "")) {
					t.Errorf("%s has words of a shell: %s", path, lit.Value)
				}
				return true
			})
			return nil
		})
		if err != nil || files == 0 {
			t.Errorf("%s: %d files: %v", room, files, err)
		}
	}
}

package tests

import (
	"bufio"
	"bytes"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

var writeHouse = flag.Bool("write-house", false, "lower the budgets in house_budget.txt to what the tree needs")

// The limits. Size follows subject: a file has 900 lines at most.
const (
	fileLinesMax     = 900
	sentenceWordsMax = 20
	docColumnsMax    = 100
)

// measureSlackPercent is how far a measure may be below its budget: not each change lowers it.
const measureSlackPercent = 10

// budgetFile lists what breaks a limit today: a rule, a place and a count, a line each.
const budgetFile = "house_budget.txt"

// floors orders the rooms of the product from the bottom up. A room imports rooms of
// lower floors only, never one beside it. A room is a folder at the top of the module;
// internal has a room in each folder. The module itself is the room "".
var floors = [][]string{
	{"internal/words", "internal/wirejson", "internal/filelock", "clients"},
	{"protocol"},
	{"internal/lifecycle", "internal/record", "internal/schema", "internal/schedule"},
	{"broker", "internal/brief", "internal/assist"},
	{"internal/jetstream"},
	{"internal/audit", "internal/embedded", "internal/integrity"},
	{"internal/brokertest", "internal/testworld", "internal/backup"},
	{"internal/supervisor", "internal/index", "internal/telemetry"},
	{"internal/explain"},
	{"api"},
	{"internal/dossier", "worker"},
	{"", "internal/gateway", "internal/doctor", "internal/demo", "internal/notify"},
	{"internal/bench"},
	{"internal/cli"},
	{"cmd"},
	{"tests", "docs"},
}

// TestHouse measures the tree against its limits: arrows between rooms, sizes of files, the rules for
// prose that a program can check, and the table of TestMeasures. A breach that house_budget.txt lists is
// tolerated; a budget only shrinks.
func TestHouse(t *testing.T) {
	found := map[string]int{}
	countArrows(t, found)
	for _, path := range filesBelow(t, "..") {
		text, err := os.ReadFile(filepath.Join("..", path))
		if err != nil {
			t.Fatal(err)
		}
		if strings.HasSuffix(path, ".go") {
			countGo(t, found, path, text)
		} else {
			countDoc(found, path, string(text))
		}
	}
	for _, m := range measures(t, "..") {
		found["measure "+m.name] = m.value
	}
	budget := readBudget(t)
	if *writeHouse {
		writeBudget(t, budget, found)
		return
	}
	for _, breach := range slices.Sorted(maps.Keys(found)) {
		if found[breach] > budget[breach] {
			t.Errorf("%s: %d, and at most %d may be", breach, found[breach], budget[breach])
		}
	}
	for _, breach := range slices.Sorted(maps.Keys(budget)) {
		slack := 0
		if strings.HasPrefix(breach, "measure ") {
			slack = 1 + budget[breach]*measureSlackPercent/100
		}
		if found[breach] < budget[breach]-slack {
			t.Errorf("%s: the budget is %d and the tree needs %d: lower it with -write-house", breach, budget[breach], found[breach])
		}
	}
}

// countArrows finds imports of a room on the same floor or above, and rooms on no floor.
// Imports that only lead down make no cycle.
func countArrows(t *testing.T, found map[string]int) {
	floor := map[string]int{}
	for i, rooms := range floors {
		for _, room := range rooms {
			floor[room] = i
		}
	}
	for path, imports := range packages(t) {
		from := roomOf(path)
		if _, ok := floor[from]; !ok {
			t.Errorf("the room %s has no floor: give it one in floors", from)
		}
		for _, imported := range imports {
			below, ours := strings.CutPrefix(imported, module)
			to := roomOf(below)
			if ours && from != to && floor[to] >= floor[from] {
				found["upward-arrow "+from+"->"+to]++
			}
		}
	}
}

// roomOf returns the room of a package or a file, by its path below the module.
func roomOf(path string) string {
	first, rest, below := strings.Cut(path, "/")
	if !below && strings.HasSuffix(path, ".go") { // the package of the module itself
		return ""
	}
	if first == "internal" {
		second, _, _ := strings.Cut(rest, "/")
		return first + "/" + second
	}
	return first
}

// walkText lists the Go files and the documents below a folder.
func walkText(dir string) (files []string, err error) {
	err = filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && path != dir && (entry.Name() == "testdata" || strings.HasPrefix(entry.Name(), ".")):
			return filepath.SkipDir
		case !entry.IsDir() && (strings.HasSuffix(path, ".go") || strings.HasSuffix(path, ".md")):
			relative, err := filepath.Rel(dir, path)
			files = append(files, filepath.ToSlash(relative))
			return err
		}
		return nil
	})
	return files, err
}

// vague matches subjects that name no role.
var vague = regexp.MustCompile(`(?i)\b(nobody|somebody|everybody|whoever)\b`)

// quoted matches code within a line of a document.
var quoted = regexp.MustCompile("`[^`]*`")

func countGo(t *testing.T, found map[string]int, path string, text []byte) {
	fset := token.NewFileSet()
	file, err := parser.ParseFile(fset, path, text, parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	if ast.IsGenerated(file) {
		return
	}
	if lines := bytes.Count(text, []byte("\n")); lines > fileLinesMax {
		found["file-lines "+path] = lines
	}
	if strings.HasSuffix(path, "_test.go") || roomOf(path) == "tests" {
		return
	}
	room := roomOf(path)
	for _, doc := range exportedDocs(file) {
		if len(strings.Fields(firstSentence(doc))) > sentenceWordsMax {
			found["long-first-sentence "+room]++
		}
	}
	for _, group := range file.Comments {
		found["vague-subject "+room] += len(vague.FindAllString(group.Text(), -1))
	}
	ast.Inspect(file, func(n ast.Node) bool {
		if lit, ok := n.(*ast.BasicLit); ok && lit.Kind == token.STRING {
			found["vague-subject "+room] += len(vague.FindAllString(lit.Value, -1))
		}
		return true
	})
}

// exportedDocs returns the doc comments of what a file exports.
func exportedDocs(file *ast.File) []string {
	var docs []string
	add := func(name string, groups ...*ast.CommentGroup) {
		for _, group := range groups {
			if group != nil && ast.IsExported(name) {
				docs = append(docs, group.Text())
				return
			}
		}
	}
	for _, decl := range file.Decls {
		switch decl := decl.(type) {
		case *ast.FuncDecl:
			add(decl.Name.Name, decl.Doc)
		case *ast.GenDecl:
			for _, spec := range decl.Specs {
				switch spec := spec.(type) {
				case *ast.TypeSpec:
					add(spec.Name.Name, spec.Doc, decl.Doc)
				case *ast.ValueSpec:
					add(spec.Names[0].Name, spec.Doc)
				}
			}
		}
	}
	return docs
}

// firstSentence returns what stands before the first full stop or colon that ends a clause.
func firstSentence(doc string) string {
	doc = strings.Join(strings.Fields(doc), " ")
	if end := regexp.MustCompile(`[.:!?] |[.:!?]$`).FindStringIndex(doc); end != nil {
		return doc[:end[0]]
	}
	return doc
}

// countDoc checks the prose of a document: code, tables and links are not wrapped.
func countDoc(found map[string]int, path, text string) {
	room := roomOf(path)
	code := false
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, "\n")
		switch {
		case strings.HasPrefix(strings.TrimSpace(line), "```"):
			code = !code
		case code:
		default:
			found["vague-subject "+room] += len(vague.FindAllString(quoted.ReplaceAllString(line, ""), -1))
			unwrappable := strings.HasPrefix(strings.TrimSpace(line), "|") || strings.HasPrefix(line, "#") || !strings.Contains(strings.TrimSpace(line), " ")
			if len([]rune(line)) > docColumnsMax && !unwrappable {
				found["long-doc-line "+room]++
			}
		}
	}
}

func readBudget(t *testing.T) map[string]int {
	text, err := os.ReadFile(budgetFile)
	if err != nil {
		t.Fatal(err)
	}
	budget := map[string]int{}
	lines := bufio.NewScanner(bytes.NewReader(text))
	for lines.Scan() {
		breach, count, ok := cutLast(lines.Text())
		if !ok {
			t.Fatalf("%s: %q has no count", budgetFile, lines.Text())
		}
		budget[breach] = count
	}
	return budget
}

// cutLast splits a line of the budget before its count.
func cutLast(line string) (breach string, count int, ok bool) {
	i := strings.LastIndex(line, " ")
	if i < 0 {
		return "", 0, false
	}
	count, err := strconv.Atoi(line[i+1:])
	return line[:i], count, err == nil
}

// writeBudget lowers what the tree needs less of. It never raises a budget.
func writeBudget(t *testing.T, budget, found map[string]int) {
	var text strings.Builder
	for _, breach := range slices.Sorted(maps.Keys(budget)) {
		if count := min(budget[breach], found[breach]); count > 0 {
			fmt.Fprintf(&text, "%s %d\n", breach, count)
		}
	}
	if err := os.WriteFile(budgetFile, []byte(text.String()), 0o644); err != nil {
		t.Fatal(err)
	}
}

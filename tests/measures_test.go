package tests

import (
	"bytes"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/scanner"
	"go/token"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var houseDir = flag.String("house-dir", "..", "the tree that TestMeasures measures: a clone of an earlier commit, say")

// measure is one line of the table of the house.
type measure struct {
	name  string
	value int
}

// TestMeasures prints the table of the house, of this tree or of another. TestHouse holds it to its
// budgets.
func TestMeasures(t *testing.T) {
	for _, m := range measures(t, *houseDir) {
		t.Logf("%7d  %s", m.value, m.name)
	}
}

// habits are the words that take the place of a noun or of a precise verb. A comment, a text or a page
// may have some of them.
var (
	habits     = regexp.MustCompile(`(?i)\b(what|says?|said|tells?|told|stands?)\b`)
	habitWhole = regexp.MustCompile(`(?i)\btells? whether\b`)
)

// house collects the figures of a tree.
type house struct {
	lines, code, exported     int
	lengths                   []int
	comments, habits, whether map[string]int // by room; texts are in "texts"
	completes                 []string
	largest, brokerMethods    int
	directories, eventSwitch  int
	words                     map[string]int
}

// measures reads the production Go and the documents below dir. Tests, and rooms that only tests use,
// do not count. Ways in other than NATS do not count as lines.
func measures(t *testing.T, dir string) []measure {
	t.Helper()
	h := house{comments: map[string]int{}, habits: map[string]int{}, whether: map[string]int{}, words: map[string]int{}}
	for _, file := range filesBelow(t, dir) {
		text, err := os.ReadFile(filepath.Join(dir, file))
		if err != nil {
			t.Fatal(err)
		}
		switch room := roomOf(file); {
		case strings.HasSuffix(file, ".md"):
			kind := "docs"
			if strings.HasPrefix(file, "docs/design/") {
				kind = "docs/design"
			}
			h.words[kind] += len(strings.Fields(string(text)))
			h.countHabits("pages", string(text))
		case strings.HasSuffix(file, "_test.go") || room == "tests" || slices.Contains(testRooms, room) || strings.HasPrefix(file, "api/apitest/"):
		default:
			if err := h.addGo(file, text); err != nil {
				t.Fatal(err)
			}
		}
	}
	slices.Sort(h.lengths)
	table := []measure{
		{"lines of production Go", h.lines},
		{"code lines of production Go", h.code},
		{"files of production Go", len(h.lengths)},
		{"exported names outside of internal", h.exported},
		{"signatures of Complete", len(h.completes)},
		{"functions that return a directory", h.directories},
		{"methods of the largest interface", h.largest},
		{"exported methods of broker.Broker", h.brokerMethods},
		{"type switches over five or more events", h.eventSwitch},
		{"words of design pages", h.words["docs/design"]},
		{"words of other documents", h.words["docs"]},
	}
	for _, room := range sortedKeys(h.comments) {
		if n := h.comments[room]; n > 0 {
			table = append(table, measure{"habits per 1,000 lines of " + room, (1000*h.habits[room] + n/2) / n})
		}
	}
	whether := 0
	for _, n := range h.whether {
		whether += n
	}
	return append(table, measure{`"tells whether"`, whether})
}

// testRooms are imported by tests alone.
var testRooms = []string{"internal/brokertest", "internal/testworld"}

func sortedKeys(m map[string]int) []string {
	var keys []string
	for key := range m {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	return keys
}

func (h *house) countHabits(room, text string) {
	h.habits[room] += len(habits.FindAllString(text, -1))
	h.whether[room] += len(habitWhole.FindAllString(text, -1))
	h.comments[room] += strings.Count(strings.TrimRight(text, "\n"), "\n") + 1
}

func (h *house) addGo(file string, text []byte) error {
	fset := token.NewFileSet()
	parsed, err := parser.ParseFile(fset, file, text, parser.ParseComments)
	if err != nil {
		return err
	}
	room := roomOf(file)
	lines := bytes.Count(text, []byte("\n"))
	if room != "internal/gateway" || strings.HasPrefix(file, "internal/gateway/nats/") {
		h.lines, h.code = h.lines+lines, h.code+codeLines(text)
		h.lengths = append(h.lengths, lines)
	}
	for _, group := range parsed.Comments {
		h.countHabits(room, group.Text())
	}
	internal := strings.HasPrefix(file, "internal/") || strings.Contains(file, "/internal/") || parsed.Name.Name == "main"
	for _, decl := range parsed.Decls {
		h.addDecl(room, path.Dir(file), internal, decl)
	}
	ast.Inspect(parsed, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.BasicLit:
			if s := n.Value; n.Kind == token.STRING && strings.Count(s, " ") > 2 {
				h.countHabits("texts", strings.ReplaceAll(s, "\n", " "))
			}
		case *ast.InterfaceType:
			h.addInterface(file, n)
		case *ast.TypeSwitchStmt:
			if eventCases(n) >= 5 {
				h.eventSwitch++
			}
		}
		return true
	})
	return nil
}

func (h *house) addDecl(room, dir string, internal bool, decl ast.Decl) {
	switch decl := decl.(type) {
	case *ast.FuncDecl:
		exported := decl.Name.IsExported() && (decl.Recv == nil || ast.IsExported(receiver(decl)))
		if exported && !internal {
			h.exported++
		}
		if decl.Name.Name == "Complete" || decl.Name.Name == "complete" {
			h.completes = append(h.completes, dir)
		}
		if exported && dir == "broker" && receiver(decl) == "Broker" {
			h.brokerMethods++
		}
		if decl.Type.Results != nil {
			for _, result := range decl.Type.Results.List {
				if isDirectory(result.Type) {
					h.directories++
					break
				}
			}
		}
	case *ast.GenDecl:
		for _, spec := range decl.Specs {
			switch spec := spec.(type) {
			case *ast.TypeSpec:
				if spec.Name.IsExported() && !internal {
					h.exported++
				}
			case *ast.ValueSpec:
				for _, name := range spec.Names {
					if name.IsExported() && !internal {
						h.exported++
					}
				}
			}
		}
	}
}

// addInterface counts the methods of an interface, and a signature of Complete in it.
func (h *house) addInterface(file string, n *ast.InterfaceType) {
	methods := 0
	for _, m := range n.Methods.List {
		methods += len(m.Names)
		for _, name := range m.Names {
			if name.Name == "Complete" {
				h.completes = append(h.completes, path.Dir(file))
			}
		}
	}
	h.largest = max(h.largest, methods)
}

func receiver(decl *ast.FuncDecl) string {
	if decl.Recv == nil || len(decl.Recv.List) == 0 {
		return ""
	}
	of := decl.Recv.List[0].Type
	if star, ok := of.(*ast.StarExpr); ok {
		of = star.X
	}
	if index, ok := of.(*ast.IndexExpr); ok {
		of = index.X
	}
	name, _ := of.(*ast.Ident)
	if name == nil {
		return ""
	}
	return name.Name
}

func isDirectory(of ast.Expr) bool {
	star, ok := of.(*ast.StarExpr)
	if !ok {
		return false
	}
	switch of := star.X.(type) {
	case *ast.Ident:
		return of.Name == "Directory"
	case *ast.SelectorExpr:
		return of.Sel.Name == "Directory"
	}
	return false
}

// eventCases counts the cases of a type switch that are pointers to types of protocol events.
func eventCases(n *ast.TypeSwitchStmt) (count int) {
	for _, clause := range n.Body.List {
		for _, of := range clause.(*ast.CaseClause).List {
			star, ok := of.(*ast.StarExpr)
			if !ok {
				continue
			}
			switch of := star.X.(type) {
			case *ast.SelectorExpr:
				if pkg, ok := of.X.(*ast.Ident); ok && (pkg.Name == "protocol" || pkg.Name == "p") {
					count++
				}
			}
		}
	}
	return count
}

// codeLines counts the lines with a token that is no comment.
func codeLines(text []byte) int {
	fset := token.NewFileSet()
	file := fset.AddFile("", fset.Base(), len(text))
	var s scanner.Scanner
	s.Init(file, text, nil, 0)
	lines := map[int]bool{}
	for {
		pos, tok, lit := s.Scan()
		if tok == token.EOF {
			return len(lines)
		}
		if tok == token.SEMICOLON && lit == "\n" {
			continue
		}
		first := file.Line(pos)
		for i := range strings.Count(lit, "\n") + 1 {
			lines[first+i] = true
		}
	}
}

// filesBelow lists the Go files and documents of a tree.
func filesBelow(t *testing.T, dir string) []string {
	t.Helper()
	files, err := walkText(dir)
	if err != nil {
		t.Fatal(err)
	}
	if len(files) == 0 {
		t.Fatal(fmt.Errorf("%s has no files", dir))
	}
	return files
}

package demo

import (
	"go/ast"
	"go/parser"
	"go/token"
	"iter"
	"regexp"
	"strings"
)

// longFunction is a function and how long it is.
type longFunction struct {
	Path  string `json:"path"`
	Line  int    `json:"line"`
	Name  string `json:"name"`
	Lines int    `json:"lines"`
}

// functions measures the functions of a file: exactly in Go, by indentation in
// Python and in the languages that name a function with a keyword, not at all
// elsewhere.
func functions(f file, body []byte) []longFunction {
	if f.Language == "Go" {
		return goFunctions(f.Path, body)
	}
	if header, ok := headers[f.Language]; ok {
		return indentedFunctions(f.Path, string(body), header, f.Language == "Python")
	}
	return nil
}

func goFunctions(path string, body []byte) []longFunction {
	set := token.NewFileSet()
	// Half a file is better than none: what parses up to the error is measured.
	parsed, _ := parser.ParseFile(set, path, body, parser.SkipObjectResolution)
	if parsed == nil {
		return nil
	}
	var all []longFunction
	for _, decl := range parsed.Decls {
		f, ok := decl.(*ast.FuncDecl)
		if !ok || f.Body == nil {
			continue
		}
		// A //line comment would point into another file: it is not followed.
		from, to := set.PositionFor(f.Pos(), false).Line, set.PositionFor(f.End(), false).Line
		all = append(all, longFunction{Path: path, Line: from, Name: goName(f), Lines: to - from + 1})
	}
	return all
}

// goComments yields the lines of all comments.
func goComments(path string, body []byte) iter.Seq2[int, string] {
	return func(yield func(int, string) bool) {
		set := token.NewFileSet()
		parsed, _ := parser.ParseFile(set, path, body, parser.ParseComments|parser.SkipObjectResolution)
		if parsed == nil {
			return
		}
		for _, group := range parsed.Comments {
			for _, comment := range group.List {
				n := set.PositionFor(comment.Pos(), false).Line
				for line := range strings.Lines(comment.Text) {
					if !yield(n, line) {
						return
					}
					n++
				}
			}
		}
	}
}

// goName is the name with its receiver's type: Broker.Submit.
func goName(f *ast.FuncDecl) string {
	if f.Recv == nil || len(f.Recv.List) == 0 {
		return f.Name.Name
	}
	receiver := f.Recv.List[0].Type
	for {
		switch t := receiver.(type) {
		case *ast.StarExpr:
			receiver = t.X
		case *ast.IndexExpr:
			receiver = t.X
		case *ast.IndexListExpr:
			receiver = t.X
		case *ast.Ident:
			return t.Name + "." + f.Name.Name
		default:
			return f.Name.Name
		}
	}
}

// headers match the line that begins a function: its indentation and its name.
var headers = map[string]*regexp.Regexp{
	"Python":     regexp.MustCompile(`^(\s*)(?:async\s+)?def\s+(\w+)`),
	"JavaScript": regexp.MustCompile(`^(\s*)(?:export\s+)?(?:default\s+)?(?:async\s+)?function\s*\*?\s*(\w+)`),
	"TypeScript": regexp.MustCompile(`^(\s*)(?:export\s+)?(?:default\s+)?(?:async\s+)?function\s*\*?\s*(\w+)`),
	"Rust":       regexp.MustCompile(`^(\s*)(?:pub(?:\([^)]*\))?\s+)?(?:const\s+)?(?:async\s+)?(?:unsafe\s+)?fn\s+(\w+)`),
	"Kotlin":     regexp.MustCompile(`^(\s*)(?:[a-z]+\s+)*fun\s+(\w+)`),
	"Swift":      regexp.MustCompile(`^(\s*)(?:[a-z]+\s+)*func\s+(\w+)`),
	"PHP":        regexp.MustCompile(`^(\s*)(?:[a-z]+\s+)*function\s+(\w+)`),
}

// indentedFunctions trusts the indentation. A function ends at the first brace
// as far in as its header, in Python before the first line as far in.
func indentedFunctions(path, body string, header *regexp.Regexp, python bool) []longFunction {
	lines := strings.Split(body, "\n")
	var all []longFunction
	for i, line := range lines {
		match := header.FindStringSubmatch(line)
		if match == nil {
			continue
		}
		if end, ok := endOf(lines, i, match[1], python); ok {
			all = append(all, longFunction{Path: path, Line: i + 1, Name: match[2], Lines: end - i + 1})
		}
	}
	return all
}

// endOf returns the index of a function's last line. Without one it says so:
// no length is better than a wrong one.
func endOf(lines []string, begin int, indent string, python bool) (end int, ok bool) {
	last := begin
	for i := begin + 1; i < len(lines); i++ {
		text := strings.TrimSpace(lines[i])
		if text == "" {
			continue
		}
		within := lines[i][:len(lines[i])-len(strings.TrimLeft(lines[i], " \t"))]
		switch {
		case python && len(within) <= len(indent) && text[0] != ')': // a closing parenthesis ends a long header
			return last, true
		case !python && within == indent && text[0] == '}':
			return i, true
		}
		last = i
	}
	return last, python
}

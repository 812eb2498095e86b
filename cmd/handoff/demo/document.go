package demo

import (
	"fmt"
	"strings"
)

// document builds Markdown. What comes from the reviewed directory goes in
// through text and code alone, so that a file name can neither break the report
// nor reach the terminal of whoever prints it.
type document struct{ strings.Builder }

// line is a paragraph.
func (d *document) line(format string, args ...any) { fmt.Fprintf(d, format+"\n\n", args...) }

func (d *document) section(title string) { d.line("## %s", title) }

// item is one of a list, which end ends.
func (d *document) item(format string, args ...any) { fmt.Fprintf(d, "- "+format+"\n", args...) }

func (d *document) end() { d.WriteString("\n") }

// table writes rows, of which the first is the heading; nothing where there
// are no others.
func (d *document) table(rows [][]string) {
	if len(rows) < 2 {
		return
	}
	for i, row := range rows {
		fmt.Fprintf(d, "| %s |\n", strings.Join(row, " | "))
		if i == 0 {
			fmt.Fprintf(d, "|%s\n", strings.Repeat("---|", len(row)))
		}
	}
	d.end()
}

// list writes what was found of a kind, and how many there are beyond it.
func (d *document) list(total int, title string, each func(func(string))) {
	if total == 0 {
		return
	}
	d.line("### %s (%s)", title, count(total))
	shown := 0
	each(func(item string) {
		d.item("%s", item)
		shown++
	})
	if total > shown {
		d.item("and %s more", count(total-shown))
	}
	d.end()
}

// special are the characters that mean something in the middle of Markdown.
var special = strings.NewReplacer(`\`, `\\`, "`", "\\`", "*", `\*`, "|", `\|`, "[", `\[`, "]", `\]`, "<", "&lt;", "&", "&amp;")

// text makes words of others harmless.
func (*document) text(s string) string { return special.Replace(printable(s)) }

// code sets a name in code, in which only backquotes and, in tables, bars mean something.
func (*document) code(s string) string {
	return "`" + strings.NewReplacer("`", "'", "|", `\|`).Replace(printable(s)) + "`"
}

package tests

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestIndex finds pages that the index of docs does not list, or lists twice.
func TestIndex(t *testing.T) {
	index := readPage(t, "docs/README.md")
	for _, page := range filesBelow(t, "..") {
		below, ok := strings.CutPrefix(page, "docs/")
		if !ok || !strings.HasSuffix(page, ".md") || below == "README.md" {
			continue
		}
		if n := strings.Count(index, "]("+below+")"); n != 1 {
			t.Errorf("docs/README.md lists %s %d times", below, n)
		}
	}
}

// TestMap finds packages that the map of rooms does not name, and rooms that are gone.
func TestMap(t *testing.T) {
	page := readPage(t, "docs/internals/map.md")
	for path := range packages(t) {
		room := roomOf(path)
		if path != "" && room != "tests" && room != "docs" && !strings.Contains(page, "`"+path+"`") {
			t.Errorf("docs/internals/map.md does not name %s", path)
		}
	}
	for _, row := range regexp.MustCompile("(?m)^\\| `([^`]+)`").FindAllStringSubmatch(page, -1) {
		if _, err := os.Stat(filepath.Join("..", row[1])); err != nil {
			t.Errorf("docs/internals/map.md has a row for %s, which is not there", row[1])
		}
	}
}

// goFile matches the name of a Go file.
var goFile = regexp.MustCompile("`([A-Za-z0-9_./]+\\.go)`")

// TestGoFiles finds names of Go files in documents that no file has.
func TestGoFiles(t *testing.T) {
	files := filesBelow(t, "..")
	for _, page := range files {
		if !strings.HasSuffix(page, ".md") {
			continue
		}
		for _, name := range goFile.FindAllStringSubmatch(readPage(t, page), -1) {
			if !slices.ContainsFunc(files, func(file string) bool { return file == name[1] || strings.HasSuffix(file, "/"+name[1]) }) {
				t.Errorf("%s names %s, which does not exist", page, name[1])
			}
		}
	}
}

// mdLink matches the target of a link in Markdown.
var mdLink = regexp.MustCompile(`\]\(([^)\s]+)\)`)

// TestLinks finds links of a document to a file or a heading that is not there.
func TestLinks(t *testing.T) {
	headings := map[string]map[string]bool{}
	for _, page := range filesBelow(t, "..") {
		if strings.HasSuffix(page, ".md") {
			headings[page] = anchors(readPage(t, page))
		}
	}
	for page := range headings {
		for _, link := range mdLink.FindAllStringSubmatch(quoted.ReplaceAllString(readPage(t, page), ""), -1) {
			if strings.Contains(link[1], "://") {
				continue
			}
			path, heading, _ := strings.Cut(link[1], "#")
			to := page
			if path != "" {
				to = filepath.ToSlash(filepath.Join(filepath.Dir(page), path))
			}
			if _, err := os.Stat(filepath.Join("..", to)); err != nil {
				t.Errorf("%s links to %s, which is not there", page, link[1])
			} else if heading != "" && !headings[to][heading] {
				t.Errorf("%s links to %s, and %s has no such heading", page, link[1], to)
			}
		}
	}
}

func readPage(t *testing.T, page string) string {
	text, err := os.ReadFile(filepath.Join("..", page))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// anchors returns the names of the headings of a page, as a link has them.
func anchors(page string) map[string]bool {
	names := map[string]bool{}
	for line := range strings.Lines(page) {
		if title := strings.TrimLeft(line, "#"); title != line {
			name := regexp.MustCompile(`[^\p{L}\p{N} _-]`).ReplaceAllString(strings.ToLower(strings.TrimSpace(title)), "")
			names[strings.ReplaceAll(name, " ", "-")] = true
		}
	}
	return names
}

// codeOf matches code on a page: a block, or what is within a sentence.
var codeOf = regexp.MustCompile("(?s)```.*?```|`[^`]+`")

// commandLine matches a command line of handoff in code, up to what the shell makes of the rest.
// A line that begins "handoff: " is an answer of the command, and has no flags of its own.
var commandLine = regexp.MustCompile("(?m)(?:^|`|[$;(] ?)handoff((?: [a-z][a-z-]*)*)((?: [^`;|#)\n]*)?)")

// TestPagesHaveCommands finds commands and flags on a page that the help does not have.
func TestPagesHaveCommands(t *testing.T) {
	_, global := helpOf(nil)
	for _, page := range filesBelow(t, "..") {
		if !strings.HasSuffix(page, ".md") {
			continue
		}
		for _, code := range codeOf.FindAllString(readPage(t, page), -1) {
			if !strings.HasPrefix(code, "```") {
				code = strings.Join(strings.Fields(code), " ")
			}
			for _, line := range commandLine.FindAllStringSubmatch(code, -1) {
				name, help := helpOf(strings.Fields(line[1]))
				if help == "" {
					t.Errorf("%s: there is no command handoff%s", page, line[1])
				}
				ours, _, _ := strings.Cut(line[1]+line[2], " -- ")
				for _, flag := range regexp.MustCompile(`(?:^| )(--[a-z][a-z-]*)`).FindAllStringSubmatch(ours, -1) {
					if !regexp.MustCompile(regexp.QuoteMeta(flag[1]) + `\b`).MatchString(help + global) {
						t.Errorf("%s: %s has no %s", page, name, flag[1])
					}
				}
			}
		}
	}
}

// helpOf returns the longest command that words begin with, and its help.
func helpOf(words []string) (name, help string) {
	for n := len(words); n >= min(1, len(words)); n-- {
		name = strings.Join(append([]string{"handoff"}, words[:n]...), "-")
		if text, err := os.ReadFile("golden/help/" + name + ".txt"); err == nil {
			help = string(text)
			for _, topic := range topics(help) { // the other flags
				text, _ := os.ReadFile("golden/help/" + name + "-" + topic + ".txt")
				help += string(text)
			}
			return name, help
		}
	}
	return name, ""
}

// documentNumber is how a page cites one of the five source documents by its number.
var documentNumber = regexp.MustCompile(`[Dd]ocument [0-9]|§ ?[0-9]`)

// TestNoDocumentNumbers: what users read stands for itself. The page of fields alone maps the
// source documents to ours.
func TestNoDocumentNumbers(t *testing.T) {
	pages := []string{"../README.md"}
	for _, glob := range []string{"../docs/*.md", "../docs/[cro]*/*.md", "../docs/design/*.md", "../docs/how-to/*.md", "golden/help/*.txt", "golden/schema-*.txt"} {
		found, err := filepath.Glob(glob)
		if err != nil {
			t.Fatal(err)
		}
		pages = append(pages, found...)
	}
	err := filepath.WalkDir("..", func(path string, _ fs.DirEntry, err error) error { // go doc shows it
		if strings.HasSuffix(path, ".go") && !strings.HasSuffix(path, "_test.go") {
			pages = append(pages, path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, page := range pages {
		if filepath.Base(page) == "fields.md" {
			continue
		}
		body, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for i, line := range strings.Split(string(body), "\n") {
			if documentNumber.MatchString(line) && !strings.Contains(line, "RFC ") {
				t.Errorf("%s:%d cites a document by its number: %s", page, i+1, line)
			}
		}
	}
}

package cli

import (
	"cmp"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode"

	"golang.org/x/text/width"

	"github.com/agenthandoff/handoff/api"
	"github.com/agenthandoff/handoff/internal/explain"
	"github.com/agenthandoff/handoff/internal/lifecycle"
	"github.com/agenthandoff/handoff/protocol"
)

// columnGap is the space between two columns.
const columnGap = 2

// wordsLeast is the least width of the words of the last column: narrower, they get a line of their
// own.
const wordsLeast = 12

// table prints rows in columns; the first row has the headings. On a terminal it fits: columns
// that have the same word in each row are left out, then texts are cut, and then columns go.
func (a *app) table(rows [][]string) error {
	lines := a.tableLines(rows, a.fitTo())
	if last := lines[len(lines)-1]; strings.Contains(last, noRoom) { // once is enough
		if last == a.remarked {
			lines = lines[:len(lines)-1]
		}
		a.remarked = last
	}
	_, err := io.WriteString(a.out, strings.Join(lines, "\n")+"\n")
	return err
}

// tables prints tables, each behind an empty line. Those without rows are left out.
func (a *app) tables(all ...[][]string) error {
	for _, rows := range all {
		if len(rows) < 2 {
			continue
		}
		a.printf("\n")
		if err := a.table(rows); err != nil {
			return err
		}
	}
	return nil
}

// rowsOf makes a table: a row for each value, below headings that are separated by bars.
func rowsOf[T any](heads string, values []T, cells func(T) []any) [][]string {
	rows := [][]string{strings.Split(heads, "|")}
	for _, v := range values {
		var row []string
		for _, cell := range cells(v) {
			if at, ok := cell.(time.Time); ok {
				cell = explain.Instant(at)
			}
			row = append(row, fmt.Sprint(cell))
		}
		rows = append(rows, row)
	}
	return rows
}

// fitTo is the width that tables and texts are fitted to; 0 is to print them whole.
func (a *app) fitTo() int {
	if a.wide {
		return 0
	}
	return a.width
}

// tableLines returns a table as lines, which are safe for a terminal. They are at most so wide;
// 0 is any width.
func (a *app) tableLines(rows [][]string, most int) []string {
	t := &fitting{heads: rows[0], colours: a.colours()}
	for _, row := range rows {
		t.rows = append(t.rows, slices.Clone(row))
	}
	for i, head := range t.heads {
		t.columns = append(t.columns, columnOf(head, i == len(t.heads)-1))
	}
	if most > 0 {
		a.shortenRows(t)
	}
	for _, row := range t.rows {
		for i := range row {
			row[i] = protocol.Printable(row[i])
		}
	}
	if most > 0 {
		t.inBrief()
		t.leaveOutSame()
		t.fit(most)
	}
	return t.lines(most)
}

// noRoom begins the remark about columns that went.
const noRoom = "no room for "

// fitting is a table while it is fitted to a width.
type fitting struct {
	heads   []string
	columns []column
	rows    [][]string // the first has the headings
	colours bool

	gone   []string // headings of the columns that went for want of room
	notes  []string // the columns that are the same in each row, with their word
	widths []int    // nil: as wide as the cells are
	below  bool     // the words of the last column have lines of their own
}

// inBrief puts short words in the place of longer ones.
func (t *fitting) inBrief() {
	for _, row := range t.rows[1:] {
		for i, cell := range row {
			row[i] = cmp.Or(t.columns[i].brief[cell], cell)
		}
	}
}

// leaveOut removes a column.
func (t *fitting) leaveOut(i int) {
	for r := range t.rows {
		if i < len(t.rows[r]) {
			t.rows[r] = slices.Delete(t.rows[r], i, i+1)
		}
	}
	t.heads, t.columns = t.rows[0], slices.Delete(t.columns, i, i+1)
}

// leaveOutSame removes the columns without news: those with the usual word in each row, and those with
// the same word in several rows, which is noted.
func (t *fitting) leaveOutSame() {
	for i := len(t.columns) - 1; i > 0; i-- {
		c, first, same, usual := t.columns[i], "", true, true
		for r, row := range t.rows[1:] {
			cell := ""
			if i < len(row) {
				cell = row[i]
			}
			if r == 0 {
				first = cell
			}
			same, usual = same && cell == first, usual && (cell == "" || cell == "-" || cell == c.usual)
		}
		switch {
		case usual && (c.same || c.blank):
			t.leaveOut(i)
		case same && c.same && len(t.rows) > 2:
			t.notes = append(t.notes, t.heads[i]+" "+first)
			t.leaveOut(i)
		}
	}
	slices.Reverse(t.notes)
}

// natural are the widths of the columns as their cells are.
func (t *fitting) natural() []int {
	widths := make([]int, len(t.columns))
	for _, row := range t.rows {
		for i, cell := range row {
			widths[i] = max(widths[i], columnsOf(cell))
		}
	}
	return widths
}

// fit chooses the widths of the columns, and which of them go.
func (t *fitting) fit(most int) {
	for {
		if t.try(most, t.columns[len(t.columns)-1].words) {
			return
		}
		next := -1
		for i, c := range t.columns {
			if c.goes > 0 && (next < 0 || c.goes < t.columns[next].goes) {
				next = i
			}
		}
		if next < 0 {
			break
		}
		t.gone = append(t.gone, t.heads[next])
		t.leaveOut(next)
	}
	if !t.try(most, wordsLeast) {
		t.below = t.columns[len(t.columns)-1].words > 0
		t.try(most, 0)
	}
}

// try cuts texts until the table has this width; the words at the end keep at least so much.
func (t *fitting) try(most, words int) bool {
	t.widths = t.natural()
	last := len(t.widths) - 1
	sum := -columnGap
	for i, w := range t.widths {
		if i == last && t.columns[i].words > 0 {
			w = min(w, words)
		}
		if i < last || !t.below {
			sum += w + columnGap
		}
	}
	for sum > most { // the widest first
		widest := -1
		for i, w := range t.widths {
			if least := t.columns[i].least; least > 0 && w > max(least, columnsOf(t.heads[i])) && (widest < 0 || w > t.widths[widest]) {
				widest = i
			}
		}
		if widest < 0 {
			break
		}
		t.widths[widest]--
		sum--
	}
	if t.columns[last].words > 0 && !t.below { // the rest of the line is theirs
		t.widths[last] = min(t.widths[last], most-(sum-min(t.natural()[last], words)))
	}
	return sum <= most
}

// lines writes the table.
func (t *fitting) lines(most int) []string {
	widths := t.widths
	if widths == nil {
		widths = t.natural()
	}
	var lines []string
	for r, row := range t.rows {
		lines = append(lines, t.line(r, row, widths, most)...)
	}
	if len(t.notes) > 0 {
		lines = append(lines, t.remark("each: "+strings.Join(t.notes, ", "), most))
	}
	if len(t.gone) > 0 {
		lines = append(lines, t.remark(noRoom+strings.Join(t.gone, ", ")+" (--wide)", most))
	}
	return lines
}

func (t *fitting) remark(text string, most int) string {
	if text = protocol.Printable(text); most > 0 {
		text = cutColumns(text, most)
	}
	if !t.colours {
		return text
	}
	return inColour(faint, text)
}

// line writes one row: a line, and more where the words at its end are wrapped, or are below it.
func (t *fitting) line(r int, row []string, widths []int, most int) []string {
	var line strings.Builder
	var more []string
	used := 0
	for i, cell := range row {
		last := i == len(row)-1
		c, room := t.columns[i], most-used
		below := most > 0 && last && t.below && i == len(t.columns)-1
		if most > 0 && room <= 0 && !below {
			break
		}
		switch {
		case below:
			if r > 0 && cell != "" {
				under := t.under(r)
				more = []string{under + cutColumns(cell, most-columnsOf(under))}
			}
			cell = ""
		case most > 0 && c.wraps:
			parts := wrapColumns(cell, max(min(widths[i], room), 1))
			cell = parts[0]
			for _, part := range parts[1:] {
				more = append(more, strings.Repeat(" ", used)+part)
			}
		case most > 0:
			cell = cutColumns(cell, min(widths[i], room))
		}
		pad := strings.Repeat(" ", max(widths[i]-columnsOf(cell), 0))
		if most > 0 && c.right {
			line.WriteString(pad)
			pad = ""
		}
		line.WriteString(t.paint(r, c, cell))
		if !last {
			line.WriteString(pad + strings.Repeat(" ", columnGap))
		}
		used += widths[i] + columnGap
	}
	text := line.String()
	if most > 0 {
		text = strings.TrimRight(text, " ")
	}
	return append([]string{text}, more...)
}

// branches are the branches of a tree in front of its rows. The rows below a row go on with goesOn.
var (
	branches = regexp.MustCompile(`^[│├└─ ]*`)
	goesOn   = strings.NewReplacer("├─", "│ ", "└─", "  ")
)

// under returns the indent of the words below a row: in a tree, the branches that pass there.
func (t *fitting) under(r int) string {
	own, next := branches.FindString(t.rows[r][0]), ""
	if r+1 < len(t.rows) {
		next = branches.FindString(t.rows[r+1][0])
	}
	if columnsOf(next) > columnsOf(own) {
		return goesOn.Replace(own) + "│ "
	}
	return goesOn.Replace(own) + "  "
}

// paint colours a cell.
func (t *fitting) paint(r int, c column, cell string) string {
	switch {
	case !t.colours || cell == "":
		return cell
	case r == 0 && cell == strings.ToUpper(cell):
		return inColour(bold, cell)
	case c.colour == nil:
		return cell
	}
	return inColour(c.colour(cell), cell)
}

// columnsOf counts the columns of a terminal that a text takes.
func columnsOf(text string) int {
	n := 0
	for _, r := range text {
		n += runeColumns(r)
	}
	return n
}

func runeColumns(r rune) int {
	switch {
	case r < 0x300:
		return 1
	case unicode.In(r, unicode.Mn, unicode.Me, unicode.Cf):
		return 0
	}
	switch width.LookupRune(r).Kind() {
	case width.EastAsianWide, width.EastAsianFullwidth:
		return 2
	}
	return 1
}

// cutColumns cuts a text to so many columns of a terminal.
func cutColumns(text string, most int) string {
	text = protocol.Printable(text)
	if columnsOf(text) <= most {
		return text
	}
	switch {
	case most < 1:
		return ""
	case most == 1:
		return "…"
	}
	return text[:prefixOf(text, most-1)] + "…"
}

// prefixOf counts the bytes of a text that fit into so many columns; one rune always does.
func prefixOf(text string, most int) int {
	for i, r := range text {
		if most -= runeColumns(r); most < 0 && i > 0 {
			return i
		}
	}
	return len(text)
}

// aCommand matches a command about a ticket.
var aCommand = regexp.MustCompile(`handoff [a-z]+(?: [a-z]+)? [0-9a-f]{8}\S*(?: --\S+(?: …)?)*`)

// unbroken are the words of a text. A command that fits into a line is one word.
func unbroken(text string, most int) (words []string) {
	for text != "" {
		at := aCommand.FindStringIndex(text)
		if at == nil {
			break
		}
		words = append(words, strings.Fields(text[:at[0]])...)
		if command := text[at[0]:at[1]]; columnsOf(command) <= most {
			words = append(words, command)
		} else {
			words = append(words, strings.Fields(command)...)
		}
		text = text[at[1]:]
	}
	return append(words, strings.Fields(text)...)
}

// wrapColumns breaks a text between words into lines of so many columns. A longer word is broken.
func wrapColumns(text string, most int) []string {
	lines := []string{""}
	for _, word := range unbroken(text, most) {
		for columnsOf(word) > most {
			n := prefixOf(word, most)
			lines, word = append(lines, word[:n]), word[n:]
		}
		switch last := &lines[len(lines)-1]; {
		case *last == "":
			*last = word
		case columnsOf(*last)+1+columnsOf(word) > most:
			lines = append(lines, word)
		default:
			*last += " " + word
		}
	}
	if len(lines) > 1 && lines[0] == "" {
		lines = lines[1:]
	}
	return lines
}

// column is the rule by which a column of a table adapts to a terminal.
type column struct {
	least int    // its texts are cut to so many columns, and no further; 0 is never
	goes  int    // the columns of a table that is too wide go in this order; 0 stays
	same  bool   // it goes where each row has the same word, which is noted
	blank bool   // it goes where each row has nothing
	usual string // this word is nothing, too
	right bool   // numbers
	words int    // it takes the rest of the line; other columns go before it has less than this
	wraps bool   // its words are wrapped, and not cut

	verbatim bool // text of others: a ticket in it stays whole
	brief    map[string]string
	colour   func(word string) string
}

// briefPhases are phases in the words of a terminal.
var briefPhases = map[string]string{
	"complete (success)": "complete", "complete (partial)": "partial", "returned (rolled_back)": "rolled back",
}

// columns are the columns of all tables by their headings. A column that is not here is never cut.
var columns = map[string]column{
	"PHASE":        {colour: phaseColour, brief: briefPhases},
	"OUTCOME":      {colour: phaseColour},
	"PRIORITY":     {same: true, usual: "normal", goes: 2},
	"ATTEMPTS":     {blank: true, goes: 1, right: true},
	"FROM":         {same: true, least: 10, goes: 4},
	"TO":           {least: 12, colour: agentColour},
	"WITH":         {blank: true, least: 10, goes: 1, colour: agentColour},
	"FROM -> TO":   {least: 17},
	"HOW":          {least: 10, goes: 3},
	"TOOK":         {goes: 5, right: true},
	"CLOSED":       {goes: 5, right: true},
	"AGE":          {right: true},
	"WHY":          {colour: needColour},
	"AGENT":        {least: 14, colour: agentColour},
	"AVAILABILITY": {least: 12, colour: standingColour},
	"IS":           {least: 10, colour: standingColour},
	"CAPABILITIES": {least: 12, goes: 2, blank: true},
	"BY":           {least: 12, goes: 6},
	"AFTER":        {right: true, goes: 7},

	"TASK":        {words: 20, verbatim: true},
	"WORDS":       {words: 32},
	"WAITS FOR":   {words: 32},
	"DESCRIPTION": {words: 20, verbatim: true, blank: true},
	"BECAUSE":     {words: 20, wraps: true, verbatim: true},
	"DETAIL":      {words: 34, wraps: true},

	"HANDOFFS":      {right: true},
	"OPEN":          {right: true, blank: true, usual: "0"},
	"SUCCESS":       {right: true},
	"ACCEPTED":      {right: true, goes: 2, blank: true, usual: "0"},
	"QUEUE P50/P95": {right: true, goes: 3, blank: true},
	"WORK P50/P95":  {right: true, goes: 6, blank: true},
	"WHOLE P50/P95": {right: true, blank: true},
	"TOKENS":        {right: true, goes: 4, blank: true},
	"COST":          {right: true, goes: 1, blank: true},
	"WORKERS":       {right: true},
	"BUSY":          {right: true},
	"QUEUED":        {right: true},
	"WAITS":         {right: true, blank: true},
	"C/H/N/L":       {right: true, blank: true, goes: 1},
	"DONE":          {right: true, goes: 3, blank: true, usual: "0"},
	"FAILED/MIN":    {right: true, goes: 4, blank: true, usual: "0"},
}

// columnOf finds a column by its heading. The last one of a table that is not listed has words.
func columnOf(head string, last bool) column {
	c, listed := columns[head]
	if last && !listed {
		c.words, c.wraps = 20, true
	}
	return c
}

// ticketShort is the length of a ticket on a terminal.
const ticketShort = 8

var tickets = regexp.MustCompile(`\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b`)

// short reports whether tickets are shown short: on a terminal, if an index finds short ones.
func (a *app) short() bool {
	return a.terminal && a.text() && a.fitTo() > 0 && a.hasIndex != nil && a.hasIndex()
}

// shortens returns a function that shortens the tickets in a text. If two tickets of the texts begin
// alike it leaves all of them whole.
func (a *app) shortens(texts ...string) func(string) string {
	whole := func(text string) string { return text }
	if !a.short() {
		return whole
	}
	seen := map[string]string{}
	for _, text := range texts {
		for _, ticket := range tickets.FindAllString(text, -1) {
			if other, found := seen[ticket[:ticketShort]]; found && other != ticket {
				return whole
			}
			seen[ticket[:ticketShort]] = ticket
		}
	}
	return func(text string) string {
		return tickets.ReplaceAllStringFunc(text, func(ticket string) string { return ticket[:ticketShort] })
	}
}

// shortenRows shows the tickets of a table short.
func (a *app) shortenRows(t *fitting) {
	var texts []string
	each := func(do func(cell *string)) {
		for _, row := range t.rows[1:] {
			for i := range row {
				if !t.columns[i].verbatim {
					do(&row[i])
				}
			}
		}
	}
	each(func(cell *string) { texts = append(texts, *cell) })
	shorten := a.shortens(texts...)
	each(func(cell *string) { *cell = shorten(*cell) })
}

const (
	red, green, amber = "\x1b[31m", "\x1b[32m", "\x1b[33m"
	bold, faint       = "\x1b[1m", "\x1b[2m"
)

// colours reports whether stdout is a terminal whose owner wants colours.
func (a *app) colours() bool {
	return a.terminal && a.env("NO_COLOR") == "" && a.env("TERM") != "dumb"
}

// coloured is a word of our own in a colour, if it has one.
func (a *app) coloured(colour, word string) styled {
	if !a.colours() {
		return styled(word)
	}
	return styled(inColour(colour, word))
}

func inColour(colour, word string) string {
	if colour == "" || word == "" {
		return word
	}
	return colour + word + "\x1b[0m"
}

// phaseColour is green for success, red for any other end, amber for a handoff that waits for more
// than its worker.
func phaseColour(words string) string {
	first := firstWord(words)
	switch {
	case strings.Contains(words, "("+string(protocol.OutcomeSuccess)), strings.Contains(words, "("+string(protocol.OutcomePartial)),
		first == string(protocol.Complete), first == string(protocol.OutcomeSuccess), first == string(protocol.OutcomePartial):
		return green
	case strings.Contains(words, "level"):
		return amber
	}
	switch first {
	case string(protocol.AwaitingApproval), string(protocol.Conditional), string(protocol.Retrying):
		return amber
	case string(protocol.PhaseFailed), string(protocol.PhaseRejected), string(protocol.PhaseTimeout), string(protocol.PhaseReturned),
		string(protocol.OutcomeCancelled), string(protocol.OutcomeRolledBack):
		return red
	}
	return ""
}

// agentColour is amber for a person.
func agentColour(agent string) string {
	if agent == protocol.Human {
		return amber
	}
	return ""
}

// needColour is red for a failure, amber for a handoff that waits for an answer.
func needColour(why string) string {
	switch why {
	case string(lifecycle.InboxReview), string(api.NeedStuck), string(api.NeedLate):
		return red
	case string(lifecycle.InboxOffer), string(lifecycle.InboxHeld), string(api.NeedPatience), string(api.NeedLoop):
		return ""
	}
	return amber
}

// standingColour is green for an agent that takes work, red for one that is not there.
func standingColour(words string) string {
	switch firstWord(words) {
	case string(api.Present), string(api.Busy), string(api.Polling), "polls":
		if strings.Contains(words, "breaker") {
			return amber
		}
		return green
	case string(api.Absent), "accepts":
		return red
	}
	return amber
}

func firstWord(words string) string {
	first, _, _ := strings.Cut(words, " ")
	return strings.TrimSuffix(first, ",")
}

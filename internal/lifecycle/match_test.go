package lifecycle_test

import (
	"bufio"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/agenthandoff/handoff/internal/lifecycle"
	"github.com/agenthandoff/handoff/protocol"
)

// What the evaluation reached, of 60 tasks with an agent and 12 without.
const reachedFirst, reachedThree, reachedNone, reachedWrong = 56, 59, 10, 2

// TestFindEvaluated reports, over the half of the labelled tasks that no number was chosen by, how
// often the right agent is first and among the first three, and how often "none" is right, beside a
// plain overlap of words. What is asserted is what was reached: it may get better, and not worse.
func TestFindEvaluated(t *testing.T) {
	d := readRoster(t)
	if len(d.Agents) != 40 {
		t.Fatalf("%d agents", len(d.Agents))
	}
	for _, half := range []string{"tune", "report"} {
		tasks := readTasks(t, half)
		bm25 := evaluate(t, tasks, func(task string) ([]string, bool) {
			m := lifecycle.Match(d, task, 3)
			return agentsOf(m.Found), m.Certain
		})
		plain := evaluate(nil, tasks, func(task string) ([]string, bool) { return overlap(d, task) })
		t.Logf("%s, %d tasks: BM25 %v; word overlap %v", half, len(tasks), bm25, plain)
		if half == "report" && (bm25.first < reachedFirst || bm25.three < reachedThree || bm25.noneRight < reachedNone || bm25.wrong > reachedWrong) {
			t.Errorf("%v: it was better", bm25)
		}
	}
}

// TestAlikeWords holds that words which only begin alike are no clear match, and forms of one word
// are.
func TestAlikeWords(t *testing.T) {
	d := &lifecycle.Directory{Agents: map[string]*protocol.Profile{
		"author": {ID: "author"}, "translator": {ID: "translator"}, "painter": {ID: "painter"},
	}}
	for question, want := range map[string]string{"add authentication": "", "a translation": "translator", "painting": "painter", "authoring": "author"} {
		m := lifecycle.Match(d, question, 3)
		if found := strings.Join(agentsOf(m.Found), " "); found != want || m.Certain != (want != "") {
			t.Errorf("%q finds %q, certain: %v; want %q", question, found, m.Certain, want)
		}
	}
}

// BenchmarkMatch finds one of 2,000 agents.
func BenchmarkMatch(b *testing.B) {
	roster, d := readRoster(b), &lifecycle.Directory{Agents: map[string]*protocol.Profile{}}
	for i := range 50 {
		for id, p := range roster.Agents {
			p.ID = fmt.Sprintf("%s-%d", id, i)
			d.Agents[p.ID] = p
		}
	}
	b.ReportAllocs()
	for b.Loop() {
		lifecycle.Match(d, "run the unit tests and check coverage", 5)
	}
}

// score is of an evaluation: what is first, or among three, of the tasks with an agent; of those
// without, how many are told so; and of all, how many are certain and wrong.
type score struct{ with, first, three, without, noneRight, certain, wrong int }

func (s score) String() string {
	return fmt.Sprintf("hit@1 %d and hit@3 %d of %d, none told %d of %d, certain %d of which wrong %d", s.first, s.three, s.with, s.noneRight, s.without, s.certain, s.wrong)
}

func evaluate(t *testing.T, tasks [][2]string, find func(string) ([]string, bool)) (s score) {
	for _, task := range tasks {
		found, certain := find(task[1])
		right := len(found) > 0 && found[0] == task[0]
		if certain {
			s.certain++
			if !right {
				s.wrong++
			}
		}
		if task[0] == "none" {
			if s.without++; !certain {
				s.noneRight++
			}
			continue
		}
		if s.with++; right {
			s.first++
		}
		if slices.Contains(found, task[0]) {
			s.three++
		} else if t != nil {
			t.Logf("missed: %s for %q, found %v", task[0], task[1], found)
		}
	}
	return s
}

// overlap counts the words that a task and a profile share, and is certain where one has the most.
func overlap(d *lifecycle.Directory, task string) ([]string, bool) {
	words := func(text string) []string {
		return strings.FieldsFunc(strings.ToLower(text), func(r rune) bool { return !('a' <= r && r <= 'z' || '0' <= r && r <= '9') })
	}
	count := map[string]int{}
	var agents []string
	for id, p := range d.Agents {
		text := id + " " + p.Specialization + " " + p.Description + " " + strings.Join(p.Examples, " ")
		for _, c := range p.Capabilities {
			text += " " + c.ID
		}
		have := words(text)
		for _, word := range words(task) {
			if slices.Contains(have, word) {
				count[id]++
			}
		}
		if count[id] > 0 {
			agents = append(agents, id)
		}
	}
	slices.SortFunc(agents, func(a, b string) int {
		if count[a] != count[b] {
			return count[b] - count[a]
		}
		return strings.Compare(a, b)
	})
	certain := len(agents) == 1 || len(agents) > 1 && count[agents[0]] > count[agents[1]]
	return agents[:min(3, len(agents))], certain
}

func agentsOf(found []lifecycle.Found) (agents []string) {
	for _, f := range found {
		agents = append(agents, f.Agent)
	}
	return agents
}

func readLines(t testing.TB, name string) (lines []string) {
	t.Helper()
	file, err := os.Open("testdata/find/" + name)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	for scan := bufio.NewScanner(file); scan.Scan(); {
		if line := scan.Text(); line != "" && !strings.HasPrefix(line, "#") {
			lines = append(lines, line)
		}
	}
	return lines
}

func readRoster(t testing.TB) *lifecycle.Directory {
	d := &lifecycle.Directory{Agents: map[string]*protocol.Profile{}}
	for _, line := range readLines(t, "roster.txt") {
		part := strings.Split(line, " | ")
		p := protocol.Profile{ID: part[0], Specialization: part[1], Examples: strings.Split(part[3], "; "), Description: part[4]}
		for id := range strings.SplitSeq(part[2], ", ") {
			p.Capabilities = append(p.Capabilities, protocol.Capability{ID: id, Proficiency: 1})
		}
		d.Agents[p.ID] = &p
	}
	return d
}

// readTasks returns one half of the tasks: agent and words.
func readTasks(t testing.TB, half string) (tasks [][2]string) {
	for i, line := range readLines(t, "tasks.txt") {
		if agent, words, _ := strings.Cut(line, " | "); (i%2 == 1) == (half == "report") {
			tasks = append(tasks, [2]string{agent, words})
		}
	}
	return tasks
}

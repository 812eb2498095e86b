package page_test

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/cdproto/accessibility"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"

	"github.com/agenthandoff/handoff/internal/testworld"
)

func TestMain(m *testing.M) { testworld.Main(m) }

// shots is a directory for screenshots of all views, at three widths and in both schemes.
var shots = flag.String("shots", "", "write screenshots to this `DIRECTORY`")

// chromium starts a browser. Without one the test is skipped.
func chromium(t *testing.T) context.Context {
	t.Helper()
	path, err := exec.LookPath("chromium")
	if err != nil {
		t.Skip("no chromium here: apt-get install chromium")
	}
	ctx, cancel := chromedp.NewContext(t.Context(), chromedp.WithAllocatorOptions(chromedp.NoSandbox, chromedp.ExecPath(path), chromedp.Flag("hide-scrollbars", true)))
	t.Cleanup(cancel)
	return ctx
}

// fleet is a handoff dev, the browser of a person, and workers.
type fleet struct {
	*testing.T
	browser        context.Context
	bin, data, nat string
	url, token     string
	scripted       bool
}

// patience bounds each wait, on a busy machine.
const patience = 2 * time.Minute

func newFleet(t *testing.T, scripted bool) *fleet {
	f := &fleet{T: t, browser: chromium(t), bin: testworld.Handoff(t), data: t.TempDir(), scripted: scripted}
	dev := testworld.Start(t, "dev", nil, f.bin, "dev", "--data", f.data, "--port", "0", "--http", "127.0.0.1:0", "--lease", "2s", "--fsync", "interval")
	f.nat = strings.TrimSpace(dev.AwaitOutput(t.Context(), "ready "))
	link := strings.TrimSpace(dev.AwaitOutput(t.Context(), "once with this link: "))
	f.url, _, _ = strings.Cut(link, "/ui/")
	token, err := os.ReadFile(filepath.Join(f.data, "http.token"))
	if err != nil {
		t.Fatal(err)
	}
	f.token = strings.TrimSpace(string(token))
	f.open(strings.TrimPrefix(link, f.url))
	if !scripted {
		if _, err := chromedp.Call(f.browser, emulation.SetScriptExecutionDisabled, emulation.SetScriptExecutionDisabledParams{Value: true}); err != nil {
			t.Fatal(err)
		}
	}
	f.send("main form", nil)
	f.await("Nothing has been handed off yet")
	return f
}

// open goes to a path.
func (f *fleet) open(path string) {
	f.Helper()
	if err := chromedp.Do(f.browser, chromedp.Navigate(f.url+path)); err != nil {
		f.Fatalf("%s: %v", path, err)
	}
}

// js evaluates an expression in the browser, as text.
func (f *fleet) js(expression string) string {
	f.Helper()
	ctx, cancel := context.WithTimeout(f.browser, patience)
	defer cancel()
	text, err := chromedp.Run(ctx, chromedp.Evaluate[string]("String("+expression+")"))
	if err != nil {
		f.Fatalf("%s: %v", expression, err)
	}
	return text
}

// await waits until the view has words. Without a script a person reloads it.
func (f *fleet) await(words string) {
	f.Helper()
	for end := time.Now().Add(patience); ; {
		text := f.js("document.body.innerText + [...document.querySelectorAll('[aria-label]')].map(n => n.ariaLabel).join(' ')")
		if strings.Contains(text, words) {
			return
		}
		if time.Now().After(end) {
			f.Fatalf("no %q at %s:\n%s", words, f.js("location.href"), text)
		}
		if testworld.Pause(f.Context(), 200*time.Millisecond); !f.scripted {
			f.open(strings.TrimPrefix(f.js("location.href"), f.url))
		}
	}
}

// send fills in a form and sends it as a person does, by its button.
func (f *fleet) send(form string, fields map[string]string) {
	f.Helper()
	before := f.js("performance.timeOrigin")
	for name, value := range fields {
		f.js(fmt.Sprintf("document.querySelector(%q).elements[%q].value = %q", form, name, value))
	}
	f.js(fmt.Sprintf("(f => (f.querySelector('button') ?? document.querySelector(`button[form='${f.id}']`)).click())(document.querySelector(%q))", form))
	for end := time.Now().Add(patience); f.js("performance.timeOrigin") == before || f.js("document.readyState") != "complete"; {
		if time.Now().After(end) {
			f.Fatalf("the form %s was not sent", form)
		}
		testworld.Pause(f.Context(), 50*time.Millisecond)
	}
}

// call is an operation over HTTP.
func (f *fleet) call(path, body, lease string) map[string]any {
	f.Helper()
	r, err := http.NewRequestWithContext(f.Context(), http.MethodPost, f.url+path, strings.NewReader(body))
	if err != nil {
		f.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+f.token)
	r.Header.Set("Content-Type", "application/json")
	if lease != "" {
		r.Header.Set("Handoff-Lease", lease)
	}
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		f.Fatal(err)
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil || answer.StatusCode >= http.StatusBadRequest {
		f.Fatalf("%s: %d %s %v", path, answer.StatusCode, text, err)
	}
	var v map[string]any
	_ = json.Unmarshal(text, &v) // 204 has none
	return v
}

func (f *fleet) agent(name, description string) {
	f.call("/v1/ops/PutAgent", fmt.Sprintf(`{"profile":{"id":%q,"description":%q}}`, name, description), "")
}

// claim claims the next handoff of an agent, accepted or not, and returns its lease.
func (f *fleet) claim(agent string, accept bool) string {
	f.Helper()
	for end := time.Now().Add(patience); ; {
		if lease, is := f.call("/v1/agents/"+agent+"/claims", fmt.Sprintf(`{"lease_ms":600000,"wait_ms":20000,"accept":%v}`, accept), "")["lease"].(string); is {
			return lease
		}
		if time.Now().After(end) {
			f.Fatalf("nothing for %s", agent)
		}
	}
}

func (f *fleet) worker(agent, script string) *testworld.Process {
	return testworld.Start(f.T, agent, []string{"NATS_URL=" + f.nat}, f.bin, "work", "--agent", agent, "--", "sh", "-c", script)
}

// TestStory: a person submits on the page, sees it move, answers in the inbox; the worker is killed, the
// page has the reason and the instant of the next step; it completes, and the chain has all agents.
func TestStory(t *testing.T) {
	for _, scripted := range []bool{true, false} {
		t.Run(fmt.Sprintf("script=%v", scripted), func(t *testing.T) {
			f := newFleet(t, scripted)
			f.agent("coder", "writes and changes code")
			f.agent("tester", "runs the tests")
			f.open("/ui")
			f.send("form.act", map[string]string{"to": "coder", "task": "write the parser", "reason": "the plan is ready"})
			f.await("was handed off")
			ticket := strings.TrimPrefix(f.js("location.pathname"), "/ui/t/")
			f.open("/ui/t/" + ticket)
			f.await("waiting")

			lease := f.claim("coder", false)
			f.call("/v1/lease/acknowledge", `{"status":"conditional","needs_context":["which grammar?"]}`, lease)
			f.await("coder asks")
			f.await("“which grammar?”")
			f.open("/ui/inbox")
			f.await("1 waits for a person.")
			f.await("No decision")
			f.send("article.open form.fields", map[string]string{"text": "the new one"})
			f.await("has your answer and goes on")
			f.await("Nothing waits for a person.")

			gate := filepath.Join(t.TempDir(), "go")
			script := fmt.Sprintf(`cat >/dev/null; while [ ! -e %s ]; do sleep 0.1; done; echo '{"status":"success","body":"written","command":{"goto":"tester"}}'`, gate)
			first := f.worker("coder", script)
			f.open("/ui/t/" + ticket)
			f.await("has worked on it")
			first.Kill()
			f.await("Attempt 1 of 3 at coder ended without a result: its worker stopped answering.")
			f.await("If nothing changes")
			if err := os.WriteFile(gate, nil, 0o600); err != nil {
				t.Fatal(err)
			}
			f.worker("coder", script)
			f.worker("tester", `cat >/dev/null; echo '{"status":"success","body":"all pass"}'`)
			f.await("done")
			f.await("a person → coder")
			f.await("coder → tester")
			f.open("/ui/t/" + ticket + "?tab=result")
			f.await("written")
			f.open("/ui")
			f.await("All is well.")

			f.open("/ui/schedules")
			f.await("No schedule and no rule is set.")
			f.call("/v1/ops/PutSchedule", `{"name":"nightly","cron":"@daily","package":{"target":{"agent":"tester"},"reason":"it is night","task":{"description":"run all tests"}}}`, "")
			f.open("/ui/schedules")
			f.await("1 schedule or rule.")
			f.send("#f-pause-schedule-nightly", nil)
			f.await("nightly is paused.")
			f.send("#f-resume-schedule-nightly", nil)
			f.await("nightly goes on.")
			f.send("#f-run-schedule-nightly", nil)
			f.await("is submitted.")
			f.open("/ui")
			f.await("schedule:nightly → tester")
		})
	}
}

// contrast returns the text whose contrast with its background is under the ratio of WCAG AA. It reads
// every text of the view, with the colours in use.
const contrast = `(() => {
  const rgba = (c) => { const m = c.match(/[\d.]+/g).map(Number); return m.length < 4 ? [...m, 1] : m }
  const light = (c) => { const [r, g, b] = c.slice(0, 3).map(v => (v /= 255) <= .04045 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4); return .2126 * r + .7152 * g + .0722 * b }
  const over = (a, b) => [0, 1, 2].map(i => a[i] * a[3] + b[i] * (1 - a[3])).concat(1)
  const bad = [], seen = new Set()
  const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT)
  while (walk.nextNode()) {
    const e = walk.currentNode.parentElement
    if (!walk.currentNode.data.trim() || !e.checkVisibility()) continue
    const s = getComputedStyle(e), svg = e.closest('svg')
    let ground = [0, 0, 0, 0]
    for (let n = svg ? (e.closest('g')?.querySelector('rect') ?? svg) : e; n; n = n.parentElement) {
      const c = rgba(n.nodeName === 'rect' ? (getComputedStyle(n).fill === 'none' ? 'rgba(0,0,0,0)' : getComputedStyle(n).fill) : getComputedStyle(n).backgroundColor)
      ground = over(ground, c.concat()).map((v, i) => i === 3 ? Math.max(ground[3], c[3]) : ground[3] >= 1 ? ground[i] : c[3] ? c[i] : ground[i])
      if (ground[3] >= 1) break
    }
    const ink = rgba(svg ? s.fill : s.color)
    let opacity = 1
    for (let n = e; n; n = n.parentElement) opacity *= Number(getComputedStyle(n).opacity)
    ink[3] *= opacity
    const [a, b] = [light(over(ink, ground)), light(ground)].sort((x, y) => y - x), ratio = (a + .05) / (b + .05)
    const pair = ink + ' on ' + ground
    if (ratio < 4.5 && !seen.has(pair)) { seen.add(pair); bad.push(ratio.toFixed(2) + ' ' + walk.currentNode.data.trim().slice(0, 40) + ' ' + pair) }
  }
  return bad.join('\n')
})()`

// names are the roles that need a name, and landmarks those that each view has.
var (
	named     = []string{"link", "button", "textbox", "checkbox", "searchbox", "combobox", "image", "article", "navigation", "region"}
	landmarks = []string{"banner", "navigation", "main", "search", "contentinfo", "heading"}
)

// TestViews: each view has its landmarks, names for all that a person reaches, enough contrast for every
// text in both schemes, nothing beyond the width of a phone, and no report of the browser.
func TestViews(t *testing.T) {
	f := newFleet(t, true)
	for name, words := range map[string]string{"coder": "writes and changes code", "reviewer": "reviews changes, asks", "deployer": "ships", "tester": "runs the tests"} {
		f.agent(name, words)
	}
	f.call("/v1/ops/PutAgent", `{"profile":{"id":"deployer","description":"ships; a person approves each","approve":"always"}}`, "")
	submit := func(to, task string) string {
		state := f.call("/v1/handoffs", fmt.Sprintf(`{"source":"lead","target":{"agent":%q},"reason":"the plan is ready","priority":"high","task":{"description":%q}}`, to, task), "")["state"].(map[string]any)
		return state["ticket"].(string)
	}
	asked := submit("coder", "review the login form before release 41: the error texts, the tab order, and that a locked account is told so")
	f.call("/v1/lease/acknowledge", `{"status":"rejected","reason":"not my language","suggested_alternative":"reviewer"}`, f.claim("coder", false))
	lease := f.claim("reviewer", true)
	f.call("/v1/lease/handoff", `{"package":{"target":{"agent":"tester"},"reason":"to see it","task":{"description":"start the form in a browser"}},"at_once":true}`, lease)
	f.call("/v1/lease/complete", `{"body":"it starts"}`, f.claim("tester", true))
	f.call("/v1/lease/fail", `{"code":"exit","message":"exit 2: no space left","retryable":true}`, lease)
	lease = f.claim("reviewer", true)
	f.call("/v1/lease/acknowledge", `{"status":"conditional","needs_context":["Which branch: main, or the one of the redesign?"],"reason":"both have the form"}`, lease)
	submit("deployer", "put release 41 into production")
	failed := submit("tester", "run the payment tests")
	f.call("/v1/lease/fail", `{"code":"exit","message":"3 of 120 tests fail"}`, f.claim("tester", true))
	submit("coder", "write the parser")
	done := submit("tester", "run the tests of the parser")
	f.call("/v1/lease/complete", `{"body":"all 120 pass"}`, f.claim("tester", true))
	f.call("/v1/ops/PauseAgent", `{"agent":"coder"}`, "")
	for name, cron := range map[string]string{"report": "0 9 * * 1-5", "sweep": "@daily", "weekly": "@weekly"} {
		f.call("/v1/ops/PutSchedule", fmt.Sprintf(`{"name":%q,"cron":%q,"zone":"Europe/Berlin","package":{"target":{"agent":"tester"},"reason":"it is time","task":{"description":"the report of the day"}}}`, name, cron), "")
	}
	f.call("/v1/ops/PauseSchedule", `{"name":"weekly"}`, "")
	f.call("/v1/ops/RunSchedule", `{"name":"sweep"}`, "")
	f.call("/v1/ops/PutRule", `{"name":"large-order","signal":"order","if":{"variable":"total","gt":100},"package":{"target":{"agent":"tester"},"reason":"a large order","task":{"description":{"$":"/text"}}}}`, "")
	for _, order := range []string{`{"total":120,"text":"check order 7"}`, `{"total":300}`} {
		f.call("/v1/signals/order", order, "")
	}
	f.call("/v1/ops/PutAgent", `{"profile":{"id":"writer","limits_by":[{"key":"model:$.variables.model","max_concurrency":1,"rate":60,"per_ms":60000}]}}`, "")
	for range 3 {
		f.call("/v1/handoffs", `{"target":{"agent":"writer"},"reason":"it is due","task":{"description":"write the news"},"context":{"variables":{"model":"large"}}}`, "")
	}
	f.claim("writer", true)
	for range 2 { // there is no place for these
		f.call("/v1/agents/writer/claims", `{"lease_ms":600000,"wait_ms":1000,"accept":true}`, "")
	}
	f.open("/ui/schedules")
	f.await("The rule large-order refused a signal.")

	views := map[string]string{"fleet": "/ui", "board": "/ui/board", "list": "/ui/board?as=list", "handoff": "/ui/t/" + asked, "failed": "/ui/t/" + failed, "done": "/ui/t/" + done + "?tab=result",
		"audit": "/ui/t/" + asked + "?tab=audit", "inbox": "/ui/inbox", "agents": "/ui/agents", "schedules": "/ui/schedules", "agent": "/ui/agents/coder", "missing": "/ui/t/00000000-0000-4000-8000-000000000000"}
	for name, path := range views {
		for _, scheme := range []string{"light", "dark"} {
			media := []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}, {Name: "prefers-reduced-motion", Value: "reduce"}}
			if _, err := chromedp.Call(f.browser, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{Features: media}); err != nil {
				t.Fatal(err)
			}
			for _, width := range []int64{320, 800, 1280} {
				if err := chromedp.Do(f.browser, chromedp.EmulateViewport(width, 900)); err != nil {
					t.Fatal(err)
				}
				f.open(path)
				f.js("document.querySelectorAll('details').forEach(d => { d.open = true })")
				if bad := f.js(contrast); bad != "" {
					t.Errorf("%s at %d, %s: too little contrast:\n%s", name, width, scheme, bad)
				}
				if wide := f.js("document.documentElement.scrollWidth"); wide > fmt.Sprint(width) && len(wide) >= len(fmt.Sprint(width)) {
					t.Errorf("%s is %s wide at %d: %s", name, wide, width, f.js("[...document.querySelectorAll('main *, footer *, header *')].filter(n => n.getBoundingClientRect().right > innerWidth && !n.closest('.scroll, #tabs, #hours')).slice(0, 3).map(n => n.outerHTML.slice(0, 120)).join('; ')"))
				}
				f.js("document.querySelectorAll('details').forEach(d => { d.open = false })")
				f.shoot(fmt.Sprintf("%s-%d-%s.png", name, width, scheme))
			}
		}
		f.readable(name)
		if size := f.js("document.documentElement.outerHTML.length"); len(size) > 5 || size > "60000" && len(size) == 5 {
			t.Errorf("%s has %s characters", name, size)
		}
	}
	f.keys(asked)
}

func (f *fleet) shoot(name string) {
	if *shots == "" {
		return
	}
	png, err := chromedp.Run(f.browser, chromedp.FullScreenshot(100))
	if err == nil {
		err = os.WriteFile(filepath.Join(*shots, name), png, 0o600)
	}
	if err != nil {
		f.Error(err)
	}
}

// readable checks the accessibility tree.
func (f *fleet) readable(view string) {
	f.Helper()
	tree, err := chromedp.Call(f.browser, accessibility.GetFullAXTree, accessibility.GetFullAXTreeParams{})
	if err != nil {
		f.Fatal(err)
	}
	text := func(v *accessibility.Value) (s string) {
		if v != nil {
			_ = json.Unmarshal([]byte(v.Value), &s)
		}
		return s
	}
	roles := map[string]int{}
	for _, n := range tree.Nodes {
		role, name := text(n.Role), text(n.Name)
		if n.Ignored {
			continue
		}
		roles[role]++
		for _, r := range named {
			if role == r && strings.TrimSpace(name) == "" {
				f.Errorf("%s: a %s has no name", view, role)
			}
		}
	}
	for _, r := range landmarks {
		if roles[r] == 0 {
			f.Errorf("%s: no %s", view, r)
		}
	}
}

// keys goes through the views by the keyboard alone.
func (f *fleet) keys(ticket string) {
	f.Helper()
	press := func(keys string) {
		for _, key := range keys {
			if err := chromedp.Do(f.browser, chromedp.KeyEvent(string(key))); err != nil {
				f.Fatal(err)
			}
		}
	}
	at := func(path string) {
		f.Helper()
		for end := time.Now().Add(patience); f.js("location.pathname") != path || f.js("document.readyState") != "complete"; {
			if time.Now().After(end) {
				f.Fatalf("the keys lead to %s, not to %s", f.js("location.href"), path)
			}
			testworld.Pause(f.Context(), 50*time.Millisecond)
		}
		f.await("live")
	}
	f.open("/ui")
	at("/ui")
	for _, go_ := range []struct{ keys, path string }{{"gb", "/ui/board"}, {"ga", "/ui/agents"}, {"gf", "/ui"}, {"gi", "/ui/inbox"}} {
		press(go_.keys)
		at(go_.path)
	}
	press("/")
	if f.js("document.activeElement.name") != "q" {
		f.Error("/ does not go to the search")
	}
	f.open("/ui/t/" + ticket)
	at("/ui/t/" + ticket)
	press("a")
	if f.js("document.activeElement.name") != "text" {
		f.Errorf("a goes to %s", f.js("document.activeElement.outerHTML"))
	}
	f.open("/ui/t/" + ticket)
	at("/ui/t/" + ticket)
	press("x")
	if f.js("document.activeElement.name") != "reason" {
		f.Errorf("x goes to %s", f.js("document.activeElement.outerHTML"))
	}
	f.open("/ui/inbox")
	at("/ui/inbox")
	press("j")
	if f.js("document.querySelectorAll('[data-row].on').length") != "1" {
		f.Error("j moves to no row")
	}
	press("p")
	f.await("paused")
}

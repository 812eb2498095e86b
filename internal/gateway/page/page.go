package page

import (
	"bytes"
	"cmp"
	"context"
	"embed"
	"errors"
	"fmt"
	"hash/crc32"
	"html/template"
	"log/slog"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/agenthandoff/handoff/api"
	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/dossier"
	"github.com/agenthandoff/handoff/internal/explain"
	"github.com/agenthandoff/handoff/internal/index/ask"
	"github.com/agenthandoff/handoff/internal/lifecycle"
	"github.com/agenthandoff/handoff/protocol"
)

// Sessions are the people who are signed in.
type Sessions interface {
	// SignIn returns the cookie of a session until an instant, for a token or the secret of a link.
	SignIn(secret string, until time.Time) (cookie string, err error)
	// Session returns the caller of such a cookie.
	Session(cookie string) (api.Caller, error)
}

// Config configures a Page.
type Config struct {
	Service  *api.Service
	Sessions Sessions
	BasePath string // of the gateway
	Secure   bool   // clients come by TLS
	ReadOnly bool   // no acts
	// Command is the command line of an action; nil shows none.
	Command func(explain.Action) string
	// Status is the HTTP status of a code.
	Status func(protocol.Code) int
	// Events answers with a stream of hints for a caller.
	Events func(http.ResponseWriter, *http.Request, func(*http.Request) (api.Caller, error))
	Log    *slog.Logger
}

// Page serves the page. It is an http.Handler, safe for concurrent use.
type Page struct {
	cfg       Config
	mux       *http.ServeMux
	templates map[string]*template.Template

	counts moments[api.People]            // by inbox
	fleets moments[[]api.AgentStatus]     // the same for all callers
	lanes  moments[[]broker.QueueStatus]  // and so are these
	rates  moments[ask.FiguresAnswer]     // of agents
	begins moments[*dossier.Triggers]     // the same for all who may see them
	keys   moments[[]lifecycle.KeyStatus] // likewise
	states moments[protocol.State]        // of the board, by ticket and sequence
	views  moments[*rendering]
}

const (
	sessionTimeout = 12 * time.Hour
	sharedFresh    = 2 * time.Second
	statesFresh    = 30 * time.Second
	ratesFresh     = 5 * time.Minute       // counting them takes seconds at a million handoffs
	ratesPatience  = 25 * time.Millisecond // so that a view does not wait for it
	formBytesMax   = 1 << 20
	changesMax     = 500 // of a handoff, that a view reads at a time
	viewTimeout    = 20 * time.Second
	askPatience    = time.Second // of a view for an answer of the index
)

//go:embed assets
var assets embed.FS

// version changes with the assets, which browsers keep.
var version = func() string {
	sum := crc32.NewIEEE()
	for _, name := range []string{"style.css", "page.mjs"} {
		body, _ := assets.ReadFile("assets/" + name)
		_, _ = sum.Write(body)
	}
	return strconv.FormatUint(uint64(sum.Sum32()), 36)
}()

// New returns a Page.
func New(cfg Config) *Page {
	p := &Page{cfg: cfg, mux: http.NewServeMux(), templates: map[string]*template.Template{},
		counts: moments[api.People]{fresh: sharedFresh, patience: askPatience},
		fleets: moments[[]api.AgentStatus]{fresh: sharedFresh, patience: viewTimeout},
		lanes:  moments[[]broker.QueueStatus]{fresh: sharedFresh, patience: viewTimeout},
		rates:  moments[ask.FiguresAnswer]{fresh: ratesFresh, patience: ratesPatience},
		begins: moments[*dossier.Triggers]{fresh: sharedFresh, patience: viewTimeout},
		keys:   moments[[]lifecycle.KeyStatus]{fresh: sharedFresh, patience: viewTimeout},
		states: moments[protocol.State]{fresh: statesFresh, patience: viewTimeout},
		views:  moments[*rendering]{every: sharedFresh, patience: viewTimeout}}
	for _, name := range []string{"fleet", "board", "handoff", "inbox", "agents", "agent", "schedules", "bulk", "sign", "problem"} {
		p.templates[name] = template.Must(template.New("frame.html").Funcs(funcs).ParseFS(assets, "assets/frame.html", "assets/"+name+".html"))
	}
	p.get("/ui", "fleet", "Fleet", p.fleet)
	p.get("/ui/{$}", "fleet", "Fleet", p.fleet)
	p.get("/ui/board", "board", "Board", p.board)
	p.get("/ui/inbox", "inbox", "Inbox", p.inbox)
	p.get("/ui/agents", "agents", "Agents", p.agents)
	p.get("/ui/agents/{agent}", "agent", "", p.agent)
	p.get("/ui/schedules", "schedules", "Schedules and rules", p.schedules)
	p.get("/ui/t/{ticket}", "handoff", "", p.handoff)
	p.get("/ui/find", "problem", "", p.find)
	p.get("/ui/", "problem", "", func(*request) (any, error) {
		return nil, protocol.Errorf(protocol.CodeNotFound, "path", "is no page")
	})
	p.mux.HandleFunc("GET /ui/in", p.signIn)
	p.mux.HandleFunc("POST /ui/in", p.signIn)
	p.mux.HandleFunc("POST /ui/out", p.signOut)
	p.mux.HandleFunc("POST /ui/act", p.act)
	p.mux.HandleFunc("GET /ui/events", func(w http.ResponseWriter, r *http.Request) { cfg.Events(w, r, p.caller) })
	for name, kind := range map[string]string{"style.css": "text/css; charset=utf-8", "page.mjs": "text/javascript; charset=utf-8", "icon.svg": "image/svg+xml"} {
		body, _ := assets.ReadFile("assets/" + name)
		if name == "style.css" {
			body = []byte(dense.Replace(string(body)))
		}
		p.mux.HandleFunc("GET /ui/"+name, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", kind)
			w.Header().Set("Cache-Control", "public, max-age=31536000, immutable")
			_, _ = w.Write(body)
		})
	}
	return p
}

// dense removes the spaces of a stylesheet without a meaning.
var dense = strings.NewReplacer(" { ", "{", "{ ", "{", " {", "{", "; ", ";", ": ", ":", " }", "}", "} ", "}", ", ", ",", "\n", "")

const policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"

// ServeHTTP implements http.Handler.
func (p *Page) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	h.Set("Content-Security-Policy", policy)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Referrer-Policy", "same-origin") // with no-referrer a browser sends no Origin with a form
	h.Set("Cache-Control", "no-store")
	p.mux.ServeHTTP(w, r)
}

// request is a request for a view.
type request struct {
	*http.Request
	p       *Page
	w       http.ResponseWriter
	caller  api.Caller
	session *api.Session
	frame   *frame
	refused error // of the act whose form is shown again
	shared  bool  // for all who see the same
}

// frame is the part of a page around its view.
type frame struct {
	Base, Page, Title, Version string
	Ticket                     string // of the view of a handoff
	Caller                     string
	ReadOnly                   bool
	Waiting                    int // in the inbox; 0 also if it is not known
	More                       bool
	Query                      string
	Here                       string // the path and the query of this view
	Toast                      *toast
	Problem                    string  // with the act that was refused a moment ago
	Typed                      []typed // in its form
	Body                       any

	zone *time.Location
	now  time.Time
}

// Zone names the zone of the times.
func (f *frame) Zone() string { return f.now.In(f.zone).Format("MST") }

// get serves a view.
func (p *Page) get(path, name, title string, load func(*request) (any, error)) {
	p.mux.HandleFunc("GET "+path, func(w http.ResponseWriter, r *http.Request) {
		caller, err := p.caller(r)
		if err != nil {
			p.askSign(w, r, "", nil)
			return
		}
		x := p.request(w, r, caller)
		x.frame.Page, x.frame.Title = name, title
		x.refused, _ = r.Context().Value(refusedKey{}).(error)
		if r.Header.Get(refreshHeader) == "" {
			p.show(x, name, load)
			return
		}
		shown, err := p.views.get(r.Context(), x.sight()+x.frame.zone.String()+x.frame.Here, func(ctx context.Context) (*rendering, error) {
			shown := &rendering{}
			x.Request, x.w, x.shared, x.frame.now, x.frame.Caller = r.WithContext(ctx), shown, true, time.Now(), "all"
			p.show(x, name, load)
			return shown, nil
		})
		if err != nil {
			return // the viewer has gone
		}
		w.Header().Set("Content-Type", htmlType)
		w.WriteHeader(shown.status)
		_, _ = w.Write(shown.Bytes())
	})
}

// refreshHeader is sent by the script when it reads a view again.
const refreshHeader = "Handoff-Refresh"

const htmlType = "text/html; charset=utf-8"

func (p *Page) request(w http.ResponseWriter, r *http.Request, caller api.Caller) *request {
	x := &request{Request: r, p: p, w: w, caller: caller, session: p.cfg.Service.As(caller)}
	x.frame = &frame{Base: p.cfg.BasePath, Version: version, Caller: caller.Name, ReadOnly: p.cfg.ReadOnly, Toast: toastOf(r), Here: r.URL.RequestURI(), zone: time.Local, now: time.Now()}
	if cookie, err := r.Cookie("handoff-zone"); err == nil {
		if zone, err := time.LoadLocation(cookie.Value); err == nil {
			x.frame.zone = zone
		}
	}
	return x
}

// show renders a view, or the problem with it.
func (p *Page) show(x *request, name string, load func(*request) (any, error)) {
	ctx, cancel := context.WithTimeout(x.Context(), viewTimeout)
	defer cancel()
	x.Request = x.WithContext(ctx)
	body, err := load(x)
	if errors.Is(err, errAnswered) {
		return
	}
	status := http.StatusOK
	if x.refused != nil {
		refusal, _ := api.Refusal(x.refused)
		status = p.cfg.Status(refusal.Code)
		x.frame.Problem, x.frame.Typed = strings.TrimSpace(refusal.Field+" "+refusal.Message), shown(x.PostForm)
	}
	if err != nil {
		if errors.Is(err, broker.ErrNotFound) {
			err = protocol.Errorf(protocol.CodeNotFound, "ticket", "is of no handoff")
		}
		refusal, _ := api.Refusal(err)
		name, body, status = "problem", refusal, p.cfg.Status(refusal.Code)
		x.frame.Title = "A problem"
		if status >= http.StatusInternalServerError {
			p.cfg.Log.Warn("page failed", "caller", x.caller.Name, "path", x.URL.Path, "err", err)
		}
	}
	x.frame.Body = body
	p.render(x.w, status, name, x.frame)
}

// errAnswered: the request was answered already.
var errAnswered = errors.New("answered")

// render writes a page. Whatever its texts have, no hidden character leaves.
func (p *Page) render(w http.ResponseWriter, status int, name string, f *frame) {
	var text bytes.Buffer
	if err := p.templates[name].Execute(&text, f); err != nil {
		p.cfg.Log.Error("page not rendered", "page", name, "err", err)
		http.Error(w, "the page could not be rendered", http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", htmlType)
	w.WriteHeader(status)
	_, _ = w.Write([]byte(protocol.PrintableLines(text.String()))) // the browser may have gone
}

// inboxName is the inbox that the page counts: that of a person, or the caller's own.
func (x *request) inboxName() string {
	all := x.caller.Inboxes()
	if slices.Contains(all, protocol.Human) || len(all) == 0 {
		return protocol.Human
	}
	return all[0]
}

// count shows the size of the inbox, of a moment ago if another viewer has asked. Without ask it asks
// nothing.
func (x *request) count(ask bool) api.People {
	name := x.inboxName()
	people := x.p.counts.last(name)
	if ask {
		people, _ = x.p.counts.get(x.Context(), name, func(ctx context.Context) (api.People, error) {
			return x.session.InboxCount(ctx, name, true) // without an index nothing is counted
		})
	}
	x.counted(people.Handoffs, people.More)
	return people
}

// fleetNow returns the agents of a moment ago.
func (x *request) fleetNow() ([]api.AgentStatus, error) {
	if !x.caller.May("Agents") {
		return x.session.Agents(x.Context())
	}
	agents, err := x.p.fleets.get(x.Context(), "", x.session.Agents)
	return slices.Clone(agents), err
}

// patient bounds the wait for an index.
func (x *request) patient(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, askPatience)
}

func (x *request) counted(n int, more bool) { x.frame.Waiting, x.frame.More = n, more }

// may reports whether the caller may act by an operation.
func (x *request) may(operation string) bool { return !x.p.cfg.ReadOnly && x.caller.May(operation) }

// command is the command line of an action.
func (x *request) command(a explain.Action) string {
	if x.p.cfg.Command == nil {
		return ""
	}
	return x.p.cfg.Command(a)
}

// Clock shows an instant in the zone of the viewer: a time, with a date if it is not of today.
func (f *frame) Clock(at time.Time) string {
	at, now := at.In(f.zone), f.now.In(f.zone)
	switch {
	case at.IsZero():
		return ""
	case at.Format(time.DateOnly) == now.Format(time.DateOnly):
		return at.Format("15:04")
	}
	return at.Format("2 Jan 15:04")
}

// For is the time since an instant, in words.
func (f *frame) For(since time.Time) string { return explain.Spoken(f.now.Sub(since)) }

// Ago is that as an age.
func (f *frame) Ago(at time.Time) string {
	switch {
	case at.IsZero():
		return ""
	case f.now.Sub(at) < time.Second:
		return "just now" // a phone has no room for more
	}
	return f.For(at) + " ago"
}

// find goes to the handoff, the agent or the list that words name.
func (p *Page) find(x *request) (any, error) {
	words := strings.TrimSpace(x.URL.Query().Get("q"))
	ctx, cancel := x.patient(x.Context())
	defer cancel()
	to := "/ui/board?as=list&text=" + template.URLQueryEscaper(words)
	if ticket, err := protocol.ParseTicket(words); err == nil {
		to = "/ui/t/" + ticket
	} else if ticket, err := x.session.Find(ctx, words); err == nil {
		to = "/ui/t/" + ticket
	} else if _, err := x.session.Profile(x.Context(), words); err == nil {
		to = "/ui/agents/" + words
	}
	http.Redirect(x.w, x.Request, p.cfg.BasePath+to, http.StatusSeeOther)
	return nil, errAnswered
}

// mark is a state as a glyph and a word, with the class of its colour.
type mark struct{ Glyph, Word, Class string }

func (m mark) String() string { return m.Glyph + " " + m.Word }

// markOf returns the mark of a state.
func markOf(s protocol.State) mark {
	switch {
	case s.Closed:
		return endMarks[s.Outcome]
	case s.StuckReason != "":
		return mark{"✕", "stuck", "bad"}
	case s.CancelRequested:
		return mark{"⊘", "stopping", "rest"}
	}
	switch s.Phase {
	case protocol.AwaitingApproval:
		switch s.Gate.First() {
		case protocol.GateApproval:
			return mark{"▣", "needs approval", "person"}
		case protocol.GateBudget:
			return mark{"▣", "needs a budget", "person"}
		}
		return mark{"‖", "held back", "rest"}
	case protocol.PhaseAccepted, protocol.Working:
		return mark{"●", "working", "run"}
	case protocol.Retrying:
		return mark{"↻", "retrying", "rest"}
	case protocol.Conditional:
		switch {
		case s.Conditions != nil:
			return mark{"◆", "asks", "person"}
		case s.Children != nil && s.Children.Awaited != "":
			return mark{"‖", "suspended", "rest"}
		}
		return mark{"‖", "put off", "rest"}
	case protocol.PhaseFailed, protocol.PhaseRejected, protocol.PhaseTimeout:
		return mark{"✕", cmp.Or(string(s.Phase), "failed"), "bad"}
	}
	switch {
	case s.Agent == protocol.Human:
		return mark{"▲", "escalated", "person"}
	case s.EscalationLevel > 0:
		return mark{"▲", "escalated", "rest"}
	case s.Reroutes > 0 || len(s.Refused) > 0:
		return mark{"⇄", "rerouted", "rest"}
	}
	return mark{"○", "waiting", "rest"}
}

// endMarks are those of closed handoffs.
var endMarks = map[protocol.Outcome]mark{
	protocol.OutcomeSuccess:    {"✓", "done", "ok"},
	protocol.OutcomePartial:    {"◑", "partial", "ok"},
	protocol.OutcomeCancelled:  {"⊘", "cancelled", "rest"},
	protocol.OutcomeRolledBack: {"⊘", "rolled back", "rest"},
	protocol.OutcomeTimeout:    {"✕", "timed out", "bad"},
	protocol.OutcomeRejected:   {"✕", "refused", "bad"},
	protocol.OutcomeFailed:     {"✕", "failed", "bad"},
}

var funcs = template.FuncMap{
	"short":  short,
	"person": explain.Person,
	"cut":    func(n int, text string) string { return protocol.CutText(oneLine(text), n) },
	"rate": func(share *float64) string {
		if share == nil {
			return "–"
		}
		return fmt.Sprintf("%.0f %%", 100**share)
	},
	"millis": explain.Millis,
	"tabs":   func() []string { return tabs },
	"words":  func(name any) string { return strings.ReplaceAll(fmt.Sprint(name), "_", "-") },
	"count":  explain.Count,
	"some":   explain.Some,
	"join":   strings.Join,
	"list":   func(all ...any) []any { return all },
}

// short is the beginning of a ticket.
func short(ticket string) string { return ticket[:min(8, len(ticket))] }

func oneLine(text string) string { return strings.Join(strings.Fields(text), " ") }

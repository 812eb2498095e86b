package page

import (
	"net"
	"net/http"
	"net/url"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/agenthandoff/handoff/api"
	"github.com/agenthandoff/handoff/protocol"
)

// cookie returns the cookie of a session, without a value. Over TLS its name binds it to this host.
// On plain loopback it has the port, so that two gateways of a machine have one each.
func (p *Page) cookie(r *http.Request) *http.Cookie {
	c := &http.Cookie{Path: "/", HttpOnly: true, SameSite: http.SameSiteLaxMode, Secure: p.cfg.Secure}
	if p.cfg.BasePath != "" {
		c.Path = p.cfg.BasePath + "/ui"
	}
	_, port, _ := net.SplitHostPort(r.Host)
	switch {
	case !p.cfg.Secure:
		c.Name = "handoff-" + port
	case p.cfg.BasePath != "":
		c.Name = "__Secure-handoff"
	default:
		c.Name = "__Host-handoff"
	}
	return c
}

// caller authenticates a request by its cookie alone.
func (p *Page) caller(r *http.Request) (api.Caller, error) {
	value := ""
	if c, err := r.Cookie(p.cookie(r).Name); err == nil {
		value = c.Value
	}
	return p.cfg.Sessions.Session(value)
}

// sign is the view that signs a person in.
type sign struct {
	Problem string
	To      string     // where to go then
	Link    string     // the secret of a link that was opened
	Typed   url.Values // the form that was sent without a session
	Shown   []typed
	Ready   bool // signed in: the form may be sent again
}

// typed is a field that a person has filled in.
type typed struct{ Name, Value string }

// askSign asks a person to sign in. The answer keeps the texts of a form.
func (p *Page) askSign(w http.ResponseWriter, r *http.Request, problem string, form url.Values) {
	to := r.URL.RequestURI()
	if r.Method != http.MethodGet {
		to = p.here(r)
	}
	p.showSign(w, r, http.StatusUnauthorized, sign{Problem: problem, To: p.inside(to), Typed: form, Shown: shown(form)})
}

func (p *Page) showSign(w http.ResponseWriter, r *http.Request, status int, s sign) {
	p.render(w, status, "sign", &frame{Base: p.cfg.BasePath, Version: version, Title: "Sign in", Page: "sign", Here: s.To, Body: s})
}

// shown lists the typed texts of a form.
func shown(form url.Values) (all []typed) {
	for name, values := range form {
		if len(values) > 0 && values[0] != "" && !slices.Contains([]string{"op", "ticket", "question", "agent", "from", "key", "bulk", "confirmed", "tickets"}, name) {
			all = append(all, typed{name, values[0]})
		}
	}
	slices.SortFunc(all, func(a, b typed) int { return strings.Compare(a.Name, b.Name) })
	return all
}

// inside returns a path of this page, for any text of a form.
func (p *Page) inside(to string) string {
	at, err := url.Parse(to)
	if err != nil || at.Host != "" || at.Scheme != "" {
		return p.cfg.BasePath + "/ui"
	}
	path := path.Clean("/" + strings.TrimPrefix(at.Path, p.cfg.BasePath))
	if path != "/ui" && !strings.HasPrefix(path, "/ui/") || path == "/ui/in" || path == "/ui/act" {
		return p.cfg.BasePath + "/ui"
	}
	query := at.Query()
	for _, name := range []string{"did", "on", "n"} {
		query.Del(name)
	}
	return (&url.URL{Path: p.cfg.BasePath + path, RawQuery: query.Encode()}).String()
}

// here is the view that a form was sent from.
func (p *Page) here(r *http.Request) string { return p.inside(r.PostFormValue("from")) }

// fromHere refuses a form that does not name this page as its origin.
func fromHere(r *http.Request) error {
	origin, err := url.Parse(r.Header.Get("Origin"))
	if err != nil || origin.Host == "" || origin.Host != r.Host {
		return protocol.Errorf(protocol.CodeForbidden, "Origin", "is not this page")
	}
	return nil
}

// signIn signs a person in, by a token or the secret of a link.
func (p *Page) signIn(w http.ResponseWriter, r *http.Request) {
	s := sign{To: p.inside(r.FormValue("to"))}
	if r.Method != http.MethodPost {
		s.Link = r.URL.Query().Get("link") // the button uses it: a preview of the link does not
		p.showSign(w, r, http.StatusOK, s)
		return
	}
	r.Body = http.MaxBytesReader(w, r.Body, formBytesMax)
	err := r.ParseForm()
	if err == nil {
		err = fromHere(r)
	}
	var cookie string
	until := time.Now().Add(sessionTimeout)
	if err == nil {
		cookie, err = p.cfg.Sessions.SignIn(strings.TrimSpace(r.PostForm.Get("token")), until)
	}
	s.Typed = url.Values{}
	for name, values := range r.PostForm {
		if name, is := strings.CutPrefix(name, "typed."); is {
			s.Typed[name] = values
		}
	}
	s.Shown = shown(s.Typed)
	if err != nil {
		refusal, _ := api.Refusal(err)
		s.Problem = "That " + refusal.Field + " " + refusal.Message + "."
		p.showSign(w, r, p.cfg.Status(refusal.Code), s)
		return
	}
	c := p.cookie(r)
	c.Value, c.Expires, c.MaxAge = cookie, until, int(sessionTimeout.Seconds())
	http.SetCookie(w, c)
	if s.Ready = len(s.Typed) > 0; s.Ready {
		p.showSign(w, r, http.StatusOK, s)
		return
	}
	http.Redirect(w, r, s.To, http.StatusSeeOther)
}

// signOut ends a session in this browser.
func (p *Page) signOut(w http.ResponseWriter, r *http.Request) {
	if fromHere(r) == nil {
		c := p.cookie(r)
		c.MaxAge = -1
		http.SetCookie(w, c)
	}
	http.Redirect(w, r, p.cfg.BasePath+"/ui", http.StatusSeeOther)
}

package httpgateway

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/agenthandoff/handoff/api"
	"github.com/agenthandoff/handoff/protocol"
)

// A session of the page is a cookie with the name of a token and the end of the session, signed with
// the hash of the token. It needs no memory: any gateway with the same file knows it, and it ends
// with the token.

const (
	// linkTimeout is how long a link to sign in works, once.
	linkTimeout = time.Hour
	linkPrefix  = "link_"
	linksMax    = 100
)

// link is a link to sign in, in the file of the tokens.
type link struct {
	SHA256 string    `json:"sha256"` // of its secret, in hex
	Name   string    `json:"name"`   // of the token that it signs in
	Until  time.Time `json:"until"`
}

// NewLink adds a link to a file and returns its secret. It signs in as the token of a name, once,
// within linkTimeout. The oldest of more than 100 links are removed.
func NewLink(path, name string) (secret string, err error) {
	secret = newSecret(linkPrefix)
	now := time.Now().UTC()
	return secret, changeFile(path, func(file *tokenFile) error {
		if !slices.ContainsFunc(file.Tokens, func(g Grant) bool { return g.Name == name }) {
			return protocol.Errorf(protocol.CodeNotFound, "name", "no token is called %s; handoff token new makes one", protocol.CutText(name, 64))
		}
		file.Links = slices.DeleteFunc(file.Links, func(l link) bool { return l.Until.Before(now) })
		file.Links = append(file.Links, link{hashOf(secret), name, now.Add(linkTimeout).Truncate(time.Second)})
		file.Links = file.Links[max(0, len(file.Links)-linksMax):]
		return nil
	})
}

// SignIn returns the cookie of a session until an instant, for a token or the secret of a link. The
// link is removed from the file, so that it works once at all gateways together.
func (t *Tokens) SignIn(secret string, until time.Time) (cookie string, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	refused := protocol.Errorf(codeUnauthorized, "token", "is no token of this gateway; handoff token new makes one")
	if strings.HasPrefix(secret, linkPrefix) {
		refused = protocol.Errorf(codeUnauthorized, "link", "has been used, or is over an hour old; handoff token link makes another")
		var name string
		err := changeFile(t.path, func(file *tokenFile) error {
			i := slices.IndexFunc(file.Links, func(l link) bool { return l.SHA256 == hashOf(secret) && time.Now().Before(l.Until) })
			if i < 0 {
				return refused
			}
			name = file.Links[i].Name
			file.Links = slices.Delete(file.Links, i, i+1)
			return nil
		})
		if err != nil {
			return "", err
		}
		if err := t.refresh(); err != nil {
			return "", err
		}
		return t.sign(name, until, refused)
	}
	if err := t.refresh(); err != nil {
		return "", err
	}
	for name, g := range t.byName {
		if g.SHA256 == hashOf(secret) {
			return t.sign(name, until, refused)
		}
	}
	return "", refused
}

func (t *Tokens) sign(name string, until time.Time, unknown error) (string, error) {
	g, ok := t.byName[name]
	if !ok {
		return "", unknown
	}
	text := base64.RawURLEncoding.EncodeToString([]byte(name)) + "." + strconv.FormatInt(until.Unix(), 10)
	return text + "." + signature(&g, text), nil
}

func signature(g *Grant, text string) string {
	mac := hmac.New(sha256.New, []byte(g.SHA256))
	mac.Write([]byte(text))
	return base64.RawURLEncoding.EncodeToString(mac.Sum(nil))
}

// Session returns the caller of a cookie of SignIn, and the name of its token. It is unauthorized once
// the session is over, or the token was revoked.
func (t *Tokens) Session(cookie string) (api.Caller, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if err := t.refresh(); err != nil {
		return api.Caller{}, err
	}
	refused := protocol.Errorf(codeUnauthorized, "session", "is over; sign in again")
	parts := strings.Split(cookie, ".")
	if len(parts) != 3 {
		return api.Caller{}, refused
	}
	name, _ := base64.RawURLEncoding.DecodeString(parts[0])
	until, _ := strconv.ParseInt(parts[1], 10, 64)
	g, ok := t.byName[string(name)]
	if !ok || !hmac.Equal([]byte(signature(&g, parts[0]+"."+parts[1])), []byte(parts[2])) || time.Now().Unix() >= until {
		return api.Caller{}, refused
	}
	return g.caller(), nil
}

package httpgateway

import (
	"cmp"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/agenthandoff/handoff/api"
	"github.com/agenthandoff/handoff/internal/filelock"
	"github.com/agenthandoff/handoff/internal/integrity"
	"github.com/agenthandoff/handoff/protocol"
)

// Role is the set of rights of a token.
type Role string

const (
	// RoleAgent submits, answers, works and reads as its agents (api.Agent).
	RoleAgent Role = "agent"
	// RoleReader reads the handoffs of its agents and sources, or all if it has none. It changes nothing.
	RoleReader Role = "reader"
	// RoleSubmitter submits as its sources, and cancels and answers what they submitted.
	RoleSubmitter Role = "submitter"
	// RoleOperator sees all handoffs and intervenes.
	RoleOperator Role = "operator"
	// RoleAdmin may do everything.
	RoleAdmin Role = "admin"
)

// Roles are all roles.
var Roles = []Role{RoleAgent, RoleReader, RoleSubmitter, RoleOperator, RoleAdmin}

// Grant is a token in its file, which has only its hash.
type Grant struct {
	Name    string    `json:"name"`
	SHA256  string    `json:"sha256"` // of the token, in hex
	Role    Role      `json:"role"`
	Agents  []string  `json:"agents,omitempty"`  // of agent: as which it acts, default its name
	Sources []string  `json:"sources,omitempty"` // of submitter: as which it submits, default its name
	Created time.Time `json:"created,omitzero"`
}

// caller returns the caller of a grant. It acts under the name of the token, or of the first that it has.
func (g *Grant) caller() api.Caller {
	c := api.Caller{Name: g.Name, Agents: g.Agents, Sources: g.Sources}
	named := func(names []string) []string {
		if len(names) == 0 {
			return []string{g.Name}
		}
		if !slices.Contains(names, g.Name) {
			c.Name = names[0]
		}
		return names
	}
	switch g.Role {
	case RoleAgent:
		c.Agents = named(g.Agents)
		c.Roles, c.Sources = api.RoleReader|api.RoleSubmitter|api.RoleWorker, slices.Concat(c.Agents, g.Sources)
	case RoleReader:
		c.Roles = api.RoleReader
	case RoleSubmitter:
		c.Roles, c.Sources = api.RoleSubmitter, named(g.Sources)
	case RoleOperator:
		c.Roles = api.RoleOperator
	case RoleAdmin:
		c.Roles = api.RoleAdmin
	}
	return c
}

func (g *Grant) validate() error {
	if err := protocol.CheckID("name", g.Name); err != nil {
		return err
	}
	if !slices.Contains(Roles, g.Role) {
		return protocol.Errorf(protocol.CodeInvalid, "role", "is %q, must be one of %v", protocol.CutText(string(g.Role), 64), Roles)
	}
	for _, id := range slices.Concat(g.Agents, g.Sources) {
		if err := protocol.CheckID("agents", id); err != nil {
			return err
		}
	}
	if hash, err := hex.DecodeString(g.SHA256); err != nil || len(hash) != sha256.Size {
		return protocol.Errorf(protocol.CodeInvalid, "sha256", "of %s is no SHA-256 in hex", g.Name)
	}
	return nil
}

const (
	tokensBytesMax = 4 << 20
	tokenBytes     = 24
	tokenPrefix    = "handoff_"
)

// Tokens are the tokens of a file. They are read again when it changes.
type Tokens struct {
	path string

	mu     sync.Mutex
	read   fs.FileInfo // of the file as it was read last
	byHash map[string]api.Caller
	byName map[string]Grant
}

// OpenTokens reads the tokens of a file, which only its owner may read. A file that does not exist
// has no tokens.
func OpenTokens(path string) (*Tokens, error) {
	t := &Tokens{path: path}
	return t, t.refresh()
}

// Caller returns the caller of a token. An unknown one is unauthorized, and so are all while the file
// cannot be read.
func (t *Tokens) Caller(token string) (api.Caller, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if err := t.refresh(); err != nil {
		return api.Caller{}, fmt.Errorf("tokens: %w", err)
	}
	// The table is searched for a hash, whose timing reveals nothing about a token.
	caller, ok := t.byHash[hashOf(token)]
	if !ok {
		return api.Caller{}, protocol.Errorf(codeUnauthorized, "Authorization", "is no token of this gateway; handoff token new makes one")
	}
	return caller, nil
}

// refresh reads the file if it has changed.
func (t *Tokens) refresh() error {
	info, err := os.Stat(t.path)
	if last := t.read; err == nil && last != nil && os.SameFile(info, last) && info.ModTime().Equal(last.ModTime()) &&
		info.Size() == last.Size() && info.Mode() == last.Mode() {
		return nil
	}
	t.read, t.byHash, t.byName = nil, map[string]api.Caller{}, map[string]Grant{}
	file, err := readTokens(t.path)
	if err != nil {
		return err
	}
	for _, g := range file.Tokens {
		t.byHash[g.SHA256], t.byName[g.Name] = g.caller(), g
	}
	t.read = info
	return nil
}

func newSecret(prefix string) string {
	var raw [tokenBytes]byte
	_, _ = rand.Read(raw[:]) // which does not fail
	return prefix + base64.RawURLEncoding.EncodeToString(raw[:])
}

func hashOf(token string) string {
	sum := sha256.Sum256([]byte(token))
	return hex.EncodeToString(sum[:])
}

type tokenFile struct {
	Tokens []Grant `json:"tokens"`
	Links  []link  `json:"links,omitempty"` // to sign in
}

// readTokens reads a file of tokens; one that does not exist is empty.
func readTokens(path string) (file tokenFile, err error) {
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return file, nil
	case err != nil:
		return file, err
	case info.Mode().Perm()&0o077 != 0:
		return file, protocol.Errorf(protocol.CodeForbidden, "tokens", "%s may be read by others (%v): chmod 600 it", path, info.Mode().Perm())
	}
	body, err := os.ReadFile(path)
	if err == nil {
		err = protocol.DecodeStrict(body, "tokens", tokensBytesMax, &file)
	}
	for _, g := range file.Tokens {
		err = cmp.Or(err, g.validate())
	}
	return file, err
}

// ListTokens returns the tokens of a file, without their secrets, in the order of their making.
func ListTokens(path string) ([]Grant, error) {
	file, err := readTokens(path)
	return file.Tokens, err
}

// NewToken adds a token to a file, and returns it. It is not kept anywhere.
func NewToken(path string, grant Grant) (token string, err error) {
	token = newSecret(tokenPrefix)
	grant.SHA256, grant.Created = hashOf(token), time.Now().UTC().Truncate(time.Second)
	if err := grant.validate(); err != nil {
		return "", err
	}
	return token, changeFile(path, func(file *tokenFile) error {
		if slices.ContainsFunc(file.Tokens, func(g Grant) bool { return g.Name == grant.Name }) {
			return protocol.Errorf(protocol.CodeConflict, "name", "%s has a token already: revoke it first, or choose another name", grant.Name)
		}
		file.Tokens = append(file.Tokens, grant)
		return nil
	})
}

// RevokeToken removes a token from a file.
func RevokeToken(path, name string) error {
	return changeFile(path, func(file *tokenFile) error {
		had := len(file.Tokens)
		file.Tokens = slices.DeleteFunc(file.Tokens, func(g Grant) bool { return g.Name == name })
		if len(file.Tokens) == had {
			return protocol.Errorf(protocol.CodeNotFound, "name", "no token is called %s", protocol.CutText(name, 64))
		}
		return nil
	})
}

// changeFile replaces the file as a whole, so that a gateway never reads a part of it.
func changeFile(path string, change func(*tokenFile) error) error {
	lock, err := filelock.Take(path + ".lock")
	if err != nil {
		return err
	}
	defer lock.Close()
	file, err := readTokens(path)
	if err == nil {
		err = change(&file)
	}
	if err != nil {
		return err
	}
	return integrity.WriteFile(path, file) // mode 0600
}

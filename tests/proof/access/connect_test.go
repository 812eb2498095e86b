//go:build proof

package access

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/jwt/v2"
	"github.com/nats-io/nkeys"

	"github.com/agenthandoff/handoff/internal/testworld"
)

// The exit codes that are seen here, as README has them.
const (
	exitDone        = 0
	exitError       = 1
	exitUsage       = 2
	exitUnreachable = 6
)

// connectCase is a way to connect, and what comes of it.
type connectCase struct {
	name  string
	env   []string
	flags []string
	code  int
	says  string // in the message
}

// tryConnecting runs a command that asks the engine something, in each of the ways.
func tryConnecting(t *testing.T, h *server, ways []connectCase) {
	t.Helper()
	for _, way := range ways {
		t.Run(way.name, func(t *testing.T) {
			got := h.runAs(append([]string{"NATS_URL=", "NATS_CONTEXT=", "NATS_CREDS=", "NATS_NKEY=", "NATS_CA=", "NATS_CERT=", "NATS_KEY=", "NATS_INBOX_PREFIX=",
				"XDG_CONFIG_HOME=" + h.dir}, way.env...), append([]string{"topology", "show"}, way.flags...)...)
			if got.code != way.code || !strings.Contains(got.errout, way.says) {
				t.Errorf("ended with %d, not %d, and said, without %q: %s", got.code, way.code, way.says, got.errout)
			}
		})
	}
}

// newServer is a house without accounts.conf.
func newServer(t *testing.T, config string) *server {
	t.Helper()
	if testworld.Race {
		t.Skip("the processes under test have no race detector in them: run it without -race")
	}
	h := &server{t: t, dir: t.TempDir(), bin: testworld.Handoff(t)}
	h.Node = testworld.StartServer(t, h.dir, config)
	return h
}

// ensure makes the streams, so that what is asked for has an answer.
func (h *server) ensure(flags ...string) {
	h.t.Helper()
	if got := h.runAs(nil, append([]string{"topology", "ensure"}, flags...)...); got.code != exitDone {
		h.t.Fatalf("ended with %d: %s", got.code, got.errout)
	}
}

func TestTLS(t *testing.T) {
	ours, other := newAuthority(t, "ours"), newAuthority(t, "other")
	cert, key := ours.issue("server")
	h := newServer(t, fmt.Sprintf("tls { cert_file: %q, key_file: %q }\n", cert, key))
	url := strings.Replace(h.URL, "nats://", "tls://", 1)
	over := []string{"-s", url, "--tlsca", ours.path}
	h.ensure(over...)
	tryConnecting(t, h, []connectCase{
		{name: "a private authority", flags: []string{"-s", url, "--tlsca", ours.path}},
		{name: "by the environment", env: []string{"NATS_URL=" + url, "NATS_CA=" + ours.path}},
		{name: "the server asks for TLS", flags: []string{"-s", h.URL, "--tlsca", ours.path}},
		{name: "no authority", flags: []string{"-s", url}, code: exitUnreachable, says: "--tlsca"},
		{name: "another authority", flags: []string{"-s", url, "--tlsca", other.path}, code: exitUnreachable, says: "--tlsca"},
		{name: "another name", flags: []string{"-s", strings.Replace(url, "127.0.0.1", "localhost", 1), "--tlsca", ours.path}, code: exitUnreachable, says: "lacks the name in the URL"},
		{name: "no certificate in the file", flags: []string{"-s", url, "--tlsca", key}, code: exitError, says: key},
		{name: "no such file", flags: []string{"-s", url, "--tlsca", "missing.pem"}, code: exitError, says: "--tlsca"},
	})
	// A whole handoff, over TLS.
	if got := h.runAs(nil, append([]string{"agents", "put", "coder"}, over...)...); got.code != exitDone {
		t.Fatal(got.errout)
	}
	testworld.Start(t, "worker", nil, h.bin, append(append([]string{"work", "--env", "all", "--agent", "coder"}, over...), "--", "cat")...)
	if got := h.runAs(nil, append([]string{"submit", "--to", "coder", "--reason", "r", "--task", "t", "--wait=1m"}, over...)...); got.code != exitDone {
		t.Errorf("ended with %d: %s", got.code, got.errout)
	}

	plain := newServer(t, "")
	tryConnecting(t, plain, []connectCase{{name: "a server without TLS", flags: []string{"-s", strings.Replace(plain.URL, "nats://", "tls://", 1)}, code: exitUnreachable, says: "has no TLS"}})
}

func TestMutualTLS(t *testing.T) {
	ours, other := newAuthority(t, "ours"), newAuthority(t, "other")
	cert, key := ours.issue("server")
	mine, myKey := ours.issue("client")
	stranger, strangerKey := other.issue("stranger")
	h := newServer(t, fmt.Sprintf("tls { cert_file: %q, key_file: %q, ca_file: %q, verify: true }\n", cert, key, ours.path))
	url := strings.Replace(h.URL, "nats://", "tls://", 1)
	trusting := []string{"-s", url, "--tlsca", ours.path}
	context := fmt.Sprintf(`{"url": %q, "ca": %q, "cert": %q, "key": %q}`, url, ours.path, mine, myKey)
	writeContext(t, h.dir, "mutual", context)
	h.ensure(append(slices.Clone(trusting), "--tlscert", mine, "--tlskey", myKey)...)
	tryConnecting(t, h, []connectCase{
		{name: "a certificate", flags: append(slices.Clone(trusting), "--tlscert", mine, "--tlskey", myKey)},
		{name: "by the environment", env: []string{"NATS_URL=" + url, "NATS_CA=" + ours.path, "NATS_CERT=" + mine, "NATS_KEY=" + myKey}},
		{name: "a context", flags: []string{"--context", "mutual"}},
		{name: "none", flags: trusting, code: exitUnreachable, says: "--tlscert"},
		{name: "a stranger's", flags: append(slices.Clone(trusting), "--tlscert", stranger, "--tlskey", strangerKey), code: exitUnreachable, says: "--tlscert"},
		{name: "without its key", flags: append(slices.Clone(trusting), "--tlscert", mine), code: exitUsage, says: "--tlskey"},
		{name: "with another's key", flags: append(slices.Clone(trusting), "--tlscert", mine, "--tlskey", strangerKey), code: exitError, says: strangerKey},
		{name: "no such file", flags: append(slices.Clone(trusting), "--tlscert", mine, "--tlskey", "missing.pem"), code: exitError, says: "--tlskey"},
	})
}

func writeContext(t *testing.T, dir, name, body string) {
	t.Helper()
	path := filepath.Join(dir, "nats", "context", name+".json")
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(body), 0o600); err != nil {
		t.Fatal(err)
	}
}

// signer makes users in the manner of nsc: an operator signs accounts, those sign users.
type signer struct {
	t        *testing.T
	operator nkeys.KeyPair
	account  nkeys.KeyPair
	system   nkeys.KeyPair
	exports  jwt.Exports       // of account
	others   map[string]string // more accounts, signed
}

func newSigner(t *testing.T) *signer {
	t.Helper()
	pair := func(make func() (nkeys.KeyPair, error)) nkeys.KeyPair {
		p, err := make()
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	return &signer{t: t, operator: pair(nkeys.CreateOperator), account: pair(nkeys.CreateAccount), system: pair(nkeys.CreateAccount), others: map[string]string{}}
}

// importing makes another account.
func (s *signer) importing(imports jwt.Imports) nkeys.KeyPair {
	s.t.Helper()
	pair, err := nkeys.CreateAccount()
	if err != nil {
		s.t.Fatal(err)
	}
	claims := jwt.NewAccountClaims(publicKey(s.t, pair))
	claims.Imports = imports
	s.others[publicKey(s.t, pair)] = s.signed(claims)
	return pair
}

func (s *signer) signed(claims jwt.Claims) string {
	s.t.Helper()
	token, err := claims.Encode(s.operator)
	if err != nil {
		s.t.Fatal(err)
	}
	return token
}

func publicKey(t *testing.T, pair nkeys.KeyPair) string {
	t.Helper()
	key, err := pair.PublicKey()
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// config is the server's, in operator mode.
func (s *signer) config() string {
	s.t.Helper()
	operator := jwt.NewOperatorClaims(publicKey(s.t, s.operator))
	operator.SystemAccount = publicKey(s.t, s.system)
	account, system := jwt.NewAccountClaims(publicKey(s.t, s.account)), jwt.NewAccountClaims(publicKey(s.t, s.system))
	account.Limits.JetStreamLimits = jwt.JetStreamLimits{MemoryStorage: -1, DiskStorage: -1, Streams: -1, Consumer: -1}
	account.Exports = s.exports
	config := fmt.Sprintf("operator: %s\nresolver: MEMORY\nresolver_preload: {\n%s: %s\n%s: %s\n", s.signed(operator),
		publicKey(s.t, s.account), s.signed(account), publicKey(s.t, s.system), s.signed(system))
	for key, token := range s.others {
		config += key + ": " + token + "\n"
	}
	return config + "}\n"
}

// creds writes the credentials of a new user of an account.
func (s *signer) creds(path string, account nkeys.KeyPair, change func(*jwt.UserClaims)) string {
	s.t.Helper()
	user, err := nkeys.CreateUser()
	if err != nil {
		s.t.Fatal(err)
	}
	claims := jwt.NewUserClaims(publicKey(s.t, user))
	if change != nil {
		change(claims)
	}
	token, err := claims.Encode(account)
	if err != nil {
		s.t.Fatal(err)
	}
	seed, err := user.Seed()
	if err != nil {
		s.t.Fatal(err)
	}
	body, err := jwt.FormatUserConfig(token, seed)
	if err != nil {
		s.t.Fatal(err)
	}
	if err := os.WriteFile(path, body, 0o600); err != nil {
		s.t.Fatal(err)
	}
	return path
}

func TestCredentials(t *testing.T) {
	s := newSigner(t)
	h := newServer(t, s.config())
	in := func(name string) string { return filepath.Join(h.dir, name) }
	good := s.creds(in("good.creds"), s.account, nil)
	stranger := s.creds(in("stranger.creds"), newSigner(t).account, nil)
	expired := s.creds(in("expired.creds"), s.account, func(u *jwt.UserClaims) { u.Expires = time.Now().Add(-time.Hour).Unix() })
	bounded := s.creds(in("bounded.creds"), s.account, func(u *jwt.UserClaims) { u.Pub.Allow.Add("handoff.query.*") })
	if err := os.WriteFile(in("junk.creds"), []byte("nothing of use"), 0o600); err != nil {
		t.Fatal(err)
	}
	writeContext(t, h.dir, "mine", fmt.Sprintf(`{"url": %q, "creds": %q}`, h.URL, good))
	writeContext(t, h.dir, "theirs", fmt.Sprintf(`{"url": %q, "creds": %q}`, h.URL, stranger))
	h.ensure("-s", h.URL, "--creds", good)
	at := func(creds string) []string { return []string{"-s", h.URL, "--creds", creds} }
	tryConnecting(t, h, []connectCase{
		{name: "good", flags: at(good)},
		{name: "by the environment", env: []string{"NATS_URL=" + h.URL, "NATS_CREDS=" + good}},
		{name: "a context", flags: []string{"--context", "mine"}},
		{name: "a context by the environment", env: []string{"NATS_CONTEXT=mine"}},
		{name: "a context of a stranger", flags: []string{"--context", "theirs"}, code: exitUnreachable, says: "does not let us in"},
		{name: "no such context", flags: []string{"--context", "none"}, code: exitError, says: "none"},
		{name: "none", flags: []string{"-s", h.URL}, code: exitUnreachable, says: "--creds"},
		{name: "a stranger's", flags: at(stranger), code: exitUnreachable, says: "--creds"},
		{name: "expired", flags: at(expired), code: exitUnreachable, says: "--creds"},
		{name: "junk", flags: at(in("junk.creds")), code: exitError, says: "junk.creds: no credentials"},
		{name: "an nkey that is none", flags: []string{"-s", h.URL, "--nkey", in("junk.creds")}, code: exitError, says: "junk.creds: no seed"},
		{name: "a user who may not", flags: at(bounded), code: exitError, says: "may not publish to $JS.API.STREAM.INFO."},
	})
}

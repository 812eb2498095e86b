package jetstream

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cenkalti/backoff/v4"
	"github.com/nats-io/nats.go"
	"github.com/synadia-io/orbit.go/natscontext"

	"github.com/agenthandoff/handoff/broker"
)

// DialConfig is the address of the engine and the identity of this client. Empty fields are not
// used.
type DialConfig struct {
	// URL is one or more servers, comma-separated; "" is nats://127.0.0.1:4222.
	URL string
	// Context is a context of the nats command line, by its name or its file.
	Context string
	// Creds is the path of a credentials file: a signed user and its seed.
	Creds string
	// NKey is the path of a file with the seed of a user that the server knows by
	// its public key.
	NKey string
	// TLSCA is the path of a PEM file with the authority to trust.
	TLSCA string
	// TLSCert and TLSKey are the paths of PEM files with the client certificate and its key: both or
	// none.
	TLSCert, TLSKey string
	// InboxPrefix is the prefix of the subjects of all answers to this client, for users that may not
	// subscribe to those of others; "" is _INBOX.
	InboxPrefix string
	// Name is shown in the server's list of connections.
	Name string
	// RefusedWithin, if not 0, bounds the retries of connections that this machine refuses: nothing
	// listens there, and a starting engine soon would.
	RefusedWithin time.Duration
	// Options are applied last.
	Options []nats.Option

	Config
}

// DefaultURL is where handoff dev listens.
const DefaultURL = nats.DefaultURL

// ConnectOptions returns the options of every connection to the engine: it reconnects for as long
// as the process lives, and meanwhile a request fails rather than being buffered until its caller
// has given up.
func ConnectOptions(name string) []nats.Option {
	return []nats.Option{
		nats.Name(name),
		nats.MaxReconnects(-1),
		nats.IgnoreAuthErrorAbort(),
		nats.ReconnectWait(100 * time.Millisecond),
		nats.ReconnectJitter(500*time.Millisecond, time.Second),
		nats.ReconnectBufSize(-1),
		nats.PingInterval(10 * time.Second),
		nats.MaxPingsOutstanding(2),
		nats.Timeout(tryTimeout), // per server
		// Errors of subscriptions are returned by the calls that wait on them, and denials by the denied
		// requests (see denials); the default handler prints to stderr.
		nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {}),
	}
}

// Dial connects and opens the engine. It retries, while no server answers and while a cluster
// elects, for Config.Timeout. Then its error wraps ErrUnreachable and names the address. An
// established connection reconnects for ever. To wait for an engine that does not run yet, see
// broker.WaitForEngine.
func Dial(ctx context.Context, cfg DialConfig) (*Engine, error) {
	if err := broker.CheckTimeout("timeout", cfg.Timeout); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, cmp.Or(cfg.Timeout, broker.TimeoutDefault))
	defer cancel()
	nc, err := Connect(ctx, cfg)
	if err != nil {
		return nil, err
	}
	j, err := open(ctx, nc, cfg.Config)
	if err != nil {
		nc.Close()
		return nil, fmt.Errorf("at %s: %w", cfg.where(), err)
	}
	j.owned = true
	return j, nil
}

// Connect makes the connection of Dial, and sends no request: the server may have no JetStream and
// no streams. The caller closes it. It retries like Dial.
func Connect(ctx context.Context, cfg DialConfig) (*nats.Conn, error) {
	identity, err := cfg.Identity()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, cmp.Or(cfg.Timeout, broker.TimeoutDefault))
	defer cancel()
	options := slices.Concat(ConnectOptions(cfg.Name), identity, cfg.Options)
	if cfg.Context != "" {
		return cfg.dialContext(ctx, options)
	}
	began := time.Now()
	return redial(ctx, cfg.where(), func() (*nats.Conn, error) {
		nc, err := nats.Connect(cmp.Or(cfg.URL, DefaultURL), options...)
		if errors.Is(err, nats.ErrNoServers) && cfg.RefusedWithin > 0 && cfg.local() && time.Since(began) >= cfg.RefusedWithin {
			err = backoff.Permanent(fmt.Errorf("%w: nothing listens at %s (connection refused); start an engine: handoff dev", broker.ErrUnreachable, cfg.where()))
		}
		return nc, err
	})
}

// local reports whether all servers are on this machine. An error of ErrNoServers then means that
// each refused the connection.
func (cfg DialConfig) local() bool {
	for server := range strings.SplitSeq(cmp.Or(cfg.URL, DefaultURL), ",") {
		if server = strings.TrimSpace(server); !strings.Contains(server, "://") {
			server = "nats://" + server
		}
		u, err := url.Parse(server)
		if err != nil || u.Hostname() != "localhost" && !net.ParseIP(u.Hostname()).IsLoopback() {
			return false
		}
	}
	return true
}

// redial dials until a server answers, refuses us, or ctx ends. An error that dial wraps with
// backoff.Permanent is returned unchanged. All others wrap ErrUnreachable and suggest a remedy, if
// known. where must hold no secrets.
func redial(ctx context.Context, where string, dial func() (*nats.Conn, error)) (*nats.Conn, error) {
	began := time.Now()
	var last error
	nc, err := backoff.RetryWithData(func() (*nats.Conn, error) {
		nc, err := dialOnce(ctx, dial)
		if err != nil && ctx.Err() == nil {
			last = err
		}
		if refused := refusal(where, err); refused != nil {
			err = backoff.Permanent(refused)
		}
		return nc, err
	}, newBackOff(ctx))
	switch {
	case err == nil:
		return nc, nil
	case ctx.Err() == nil:
		return nil, err
	case !errors.Is(ctx.Err(), context.DeadlineExceeded):
		return nil, ctx.Err()
	}
	return nil, &broker.SilenceError{After: time.Since(began).Round(100 * time.Millisecond),
		Last: fmt.Errorf("no NATS server answers at %s (%w); start one: handoff dev", where, cmp.Or(last, ctx.Err()))}
}

// dialOnce calls dial, and also ends with ctx. A connection that is made later is closed.
func dialOnce(ctx context.Context, dial func() (*nats.Conn, error)) (*nats.Conn, error) {
	type outcome struct {
		nc  *nats.Conn
		err error
	}
	made := make(chan outcome, 1)
	go func() {
		nc, err := dial()
		made <- outcome{nc, err}
	}()
	select {
	case o := <-made:
		return o.nc, o.err
	case <-ctx.Done():
		go func() {
			if o := <-made; o.nc != nil {
				o.nc.Close()
			}
		}()
		return nil, ctx.Err()
	}
}

// refusal returns an error with a remedy if the server has refused us or is the wrong one: retrying
// does not help. Otherwise it returns nil.
func refusal(where string, err error) error {
	unreachable := func(format string, args ...any) error {
		return fmt.Errorf("%w: "+format+": %w", append(append([]any{broker.ErrUnreachable}, args...), err)...)
	}
	var (
		unverified *tls.CertificateVerificationError
		host       x509.HostnameError
		alert      tls.AlertError
		record     tls.RecordHeaderError
	)
	switch {
	case err == nil:
	case errors.Is(err, nats.ErrAuthorization), errors.Is(err, nats.ErrAuthExpired), errors.Is(err, nats.ErrAuthRevoked):
		return unreachable("the server at %s does not let us in; check the credentials (--creds, --nkey, a context, or nats://USER:PASSWORD@HOST:4222)", where)
	case errors.As(err, &host):
		return unreachable("the certificate of the server at %s lacks the name in the URL", where)
	case errors.As(err, &unverified):
		return unreachable("the certificate of the server at %s was not issued by a trusted authority; set the PEM file of its authority with --tlsca ($NATS_CA)", where)
	case errors.As(err, &alert), errors.Is(err, nats.ErrTLS), strings.Contains(err.Error(), "remote error: tls:"):
		return unreachable("the server at %s does not accept our certificate; show it one with --tlscert and --tlskey ($NATS_CERT, $NATS_KEY)", where)
	case errors.Is(err, nats.ErrSecureConnWanted), errors.As(err, &record):
		return unreachable("the server at %s has no TLS; write nats:// instead of tls://", where)
	}
	return nil
}

// withoutSecrets removes the secrets from a list of server URLs.
func withoutSecrets(servers string) string {
	list := strings.Split(servers, ",")
	for i, server := range list {
		scheme, rest, ok := strings.Cut(server, "://")
		if !ok {
			scheme, rest = "nats", server
		}
		if at := strings.LastIndexByte(rest, '@'); at >= 0 {
			rest = rest[at+1:]
		}
		list[i] = strings.TrimSpace(scheme) + "://" + rest
	}
	return strings.Join(list, ",")
}

// FromEnv fills empty fields from the environment. If a context is set, it ignores the environment,
// so that a stray NATS_URL has no effect. A URL and a context together mean the context's
// credentials at that URL.
func (cfg DialConfig) FromEnv(env func(string) string) DialConfig {
	if cfg.Context != "" {
		return cfg
	}
	cfg.Context = env("NATS_CONTEXT")
	for name, field := range map[string]*string{
		"NATS_URL": &cfg.URL, "NATS_CREDS": &cfg.Creds, "NATS_NKEY": &cfg.NKey, "NATS_INBOX_PREFIX": &cfg.InboxPrefix,
		"NATS_CA": &cfg.TLSCA, "NATS_CERT": &cfg.TLSCert, "NATS_KEY": &cfg.TLSKey,
	} {
		*field = cmp.Or(*field, env(name))
	}
	return cfg
}

// where returns the address for messages, without secrets.
func (cfg DialConfig) where() string {
	servers := withoutSecrets(cmp.Or(cfg.URL, DefaultURL))
	switch name := strings.TrimSuffix(filepath.Base(cfg.Context), ".json"); {
	case cfg.Context == "":
		return servers
	case cfg.URL != "":
		return fmt.Sprintf("%s (context %s)", servers, name)
	default:
		return "context " + name
	}
}

// dialContext connects with a context of the nats command line, which supports more ways to
// authenticate than DialConfig. It retries until ctx ends.
func (cfg DialConfig) dialContext(ctx context.Context, options []nats.Option) (*nats.Conn, error) {
	var dialing atomic.Bool // set once the context was read and the options are applied
	options = append(options, func(o *nats.Options) error {
		dialing.Store(true)
		if cfg.URL != "" {
			o.Servers = strings.Split(cfg.URL, ",")
		}
		return nil
	})
	return redial(ctx, cfg.where(), func() (*nats.Conn, error) {
		nc, _, err := natscontext.Connect(cfg.Context, options...)
		if err != nil && !dialing.Load() {
			err = backoff.Permanent(fmt.Errorf("nats %s: %w", DialConfig{Context: cfg.Context}.where(), err))
		}
		return nc, err
	})
}

// Identity returns the options for the client's identity and the trusted authorities, and no
// others. It reports unusable files by name: the library would fail while connecting, as if no
// server answered.
func (cfg DialConfig) Identity() ([]nats.Option, error) {
	var options []nats.Option
	if cfg.Creds != "" {
		if body, err := os.ReadFile(cfg.Creds); err != nil || !bytes.Contains(body, []byte("BEGIN NATS USER JWT")) {
			return nil, identityFileError(cfg.Creds, "credentials of a NATS user (nsc generate creds)", err)
		}
		options = append(options, nats.UserCredentials(cfg.Creds))
	}
	if cfg.NKey != "" {
		seed, err := nats.NkeyOptionFromSeed(cfg.NKey)
		if err != nil {
			return nil, identityFileError(cfg.NKey, "seed of an nkey (nk -gen user)", err)
		}
		options = append(options, seed)
	}
	if cfg.TLSCA != "" {
		if body, err := os.ReadFile(cfg.TLSCA); err != nil || !x509.NewCertPool().AppendCertsFromPEM(body) {
			return nil, identityFileError(cfg.TLSCA, "certificate of an authority in PEM", err)
		}
		options = append(options, nats.RootCAs(cfg.TLSCA))
	}
	if cfg.TLSCert != "" || cfg.TLSKey != "" {
		if _, err := tls.LoadX509KeyPair(cfg.TLSCert, cfg.TLSKey); err != nil {
			return nil, identityFileError(cfg.TLSCert+" with "+cfg.TLSKey, "certificate with its key in PEM", err)
		}
		options = append(options, nats.ClientCert(cfg.TLSCert, cfg.TLSKey))
	}
	if cfg.InboxPrefix != "" {
		options = append(options, nats.CustomInboxPrefix(cfg.InboxPrefix))
	}
	return options, nil
}

func identityFileError(path, what string, err error) error {
	if err == nil {
		return fmt.Errorf("%s: no %s", path, what)
	}
	return fmt.Errorf("%s: no %s: %w", path, what, err)
}

// deniedMax is how many denied subjects are remembered.
const deniedMax = 256

// denials remembers the requests that the engine has denied. The engine does not answer a denied
// request but reports it asynchronously, so the request times out: a timeout is explained by the
// denials since the request was sent. That is exact for one request at a time; with concurrent ones
// it may name the denial of another request, but then too the user lacks a permission that its role
// needs.
type denials struct {
	mu      sync.Mutex
	publish map[string]time.Time // by subject: the latest
	inbox   string               // the subject for answers that this user may not subscribe to
	watches map[*watch]bool
}

// watch is called when a publication to a subject with its prefix is denied, or the subscription to
// answers.
type watch struct {
	prefix string
	called func()
}

// watch adds a watch until stop is called.
func (d *denials) watch(prefix string, called func()) (stop func()) {
	w := &watch{prefix, called}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.watches == nil {
		d.watches = map[*watch]bool{}
	}
	d.watches[w] = true
	return func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		delete(d.watches, w)
	}
}

// follow records the denials of a connection until stop is called, which restores the previous
// error handler.
func (d *denials) follow(nc *nats.Conn) (stop func()) {
	others := nc.ErrorHandler()
	nc.SetErrorHandler(func(nc *nats.Conn, sub *nats.Subscription, err error) {
		if errors.Is(err, nats.ErrPermissionViolation) {
			d.record(err.Error(), nc.Opts.InboxPrefix, time.Now())
		}
		if others != nil {
			others(nc, sub, err)
		}
	})
	return func() { nc.SetErrorHandler(others) }
}

var violation = regexp.MustCompile(`(Publish|Subscription) to "?([^\s"]+)`)

func (d *denials) record(violates, inboxPrefix string, now time.Time) {
	found := violation.FindStringSubmatch(violates)
	if found == nil || strings.HasPrefix(found[2], removePrefix+WorkStream) || found[2] == NodeSubject { // see mayRemove and AskNode: these only probe
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	defer func() {
		for w := range d.watches {
			if d.inbox != "" || found[1] == "Publish" && strings.HasPrefix(found[2], w.prefix) {
				w.called()
			}
		}
	}()
	switch {
	case found[1] == "Publish" && (d.publish == nil || len(d.publish) >= deniedMax):
		d.publish = map[string]time.Time{found[2]: now}
	case found[1] == "Publish":
		d.publish[found[2]] = now
	case strings.HasPrefix(found[2], cmp.Or(inboxPrefix, "_INBOX")+"."):
		d.inbox = found[2]
	}
}

// explain returns err, or its cause: a request that was sent at began got no answer because it was
// denied.
func (d *denials) explain(nc *nats.Conn, began time.Time, err error) error {
	if err == nil || !errors.Is(err, nats.ErrTimeout) && !errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.inbox != "" {
		return fmt.Errorf("%w: %s may not subscribe to %s, which receives answers; set its own prefix with --inbox-prefix ($NATS_INBOX_PREFIX), or permit it: docs/operations/security.md",
			broker.ErrNotAllowed, userOf(nc), d.inbox)
	}
	for subject, at := range d.publish {
		if !at.Before(began) {
			return fmt.Errorf("%w: %s may not publish to %s; the permissions of each role are in docs/operations/security.md", broker.ErrNotAllowed, userOf(nc), subject)
		}
	}
	return err
}

// watchWhile runs op, and ends it early if a publication to a subject with the prefix is denied. It
// is for operations with long timeouts; others are explained after their timeout.
func (d *denials) watchWhile(ctx context.Context, nc *nats.Conn, prefix string, op func(context.Context) error) error {
	asking, cancel := context.WithCancel(ctx)
	defer cancel()
	defer d.watch(prefix, cancel)()
	began := time.Now()
	err := op(asking)
	if asking.Err() != nil && ctx.Err() == nil && err != nil {
		err = context.DeadlineExceeded
	}
	return d.explain(nc, began, err)
}

// MayAsk checks whether the server lets a connection send requests on a subject, and get answers:
// ErrNotAllowed if not. It publishes an empty message there, without a reply subject, which the
// answering process has to ignore. It takes one round trip, TimeoutDefault at most.
func MayAsk(ctx context.Context, nc *nats.Conn, subject string) error {
	ctx, cancel := context.WithTimeout(ctx, broker.TimeoutDefault)
	defer cancel()
	var d denials
	defer d.follow(nc)()
	heard := make(chan struct{})
	defer d.watch("", sync.OnceFunc(func() { close(heard) }))()
	before, began := nc.LastError(), time.Now()
	sub, err := nc.SubscribeSync(nc.NewInbox())
	if err == nil {
		defer func() { _ = sub.Unsubscribe() }()
		err = nc.Publish(subject, nil)
	}
	if err == nil {
		err = nc.FlushWithContext(ctx)
	}
	if err != nil {
		return fmt.Errorf("%w: %w", broker.ErrUnreachable, err)
	}
	// A denial is known before the answer to the flush, and reaches the error handler a little later.
	if denied := nc.LastError(); denied == before || !errors.Is(denied, nats.ErrPermissionViolation) { //nolint:errorlint // the same value
		return nil
	}
	select {
	case <-heard:
	case <-time.After(tryTimeout):
	}
	return d.explain(nc, began, context.DeadlineExceeded)
}

// userOf returns the user name of the connection, without secrets.
func userOf(nc *nats.Conn) string {
	name := nc.Opts.User
	if u, err := url.Parse(nc.ConnectedUrl()); err == nil && u.User != nil {
		name = cmp.Or(name, u.User.Username())
	}
	if name = cmp.Or(name, nc.Opts.Nkey); name == "" {
		return "this user"
	}
	return "user " + name
}

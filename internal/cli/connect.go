package cli

import (
	"cmp"
	"context"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/spf13/pflag"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/explain"
	"github.com/agenthandoff/handoff/internal/index/ask"
	"github.com/agenthandoff/handoff/internal/jetstream"
	"github.com/agenthandoff/handoff/internal/telemetry"
	"github.com/agenthandoff/handoff/protocol/redact"
)

// connection is the address of the engine, as flags.
type connection struct {
	jetstream.DialConfig
	dir      string        // where relative file names begin
	contexts string        // $XDG_CONFIG_HOME, for contexts of the nats command line
	timeout  time.Duration // 0: the environment's, or the default
}

func (c *connection) flags(fs *pflag.FlagSet) {
	fs.StringVarP(&c.URL, "nats", "s", "", "engine to use: NATS URLs, comma-separated ($NATS_URL; default "+jetstream.DefaultURL+")")
	fs.StringVar(&c.Context, "context", "", "context of the nats command line to connect with ($NATS_CONTEXT)")
	fs.StringVar(&c.Creds, "creds", "", "credentials file ($NATS_CREDS)")
	fs.StringVar(&c.NKey, "nkey", "", "file with the seed of our nkey ($NATS_NKEY)")
	fs.StringVar(&c.TLSCA, "tlsca", "", "PEM file with the certificate authority to trust ($NATS_CA)")
	fs.StringVar(&c.TLSCert, "tlscert", "", "PEM file with the certificate to show to the server ($NATS_CERT)")
	fs.StringVar(&c.TLSKey, "tlskey", "", "PEM file with its key ($NATS_KEY)")
	fs.Var(durationValue[time.Duration]{to: &c.timeout, unit: 1}, "timeout", "how long each question to the engine is tried, 1s to 10m; a command asks several ($"+timeoutEnv+"; default "+explain.Duration(broker.TimeoutDefault)+", which outlasts an election)")
	fs.StringVar(&c.InboxPrefix, "inbox-prefix", "", "begins the subjects of answers to us, where a user may not read those of others ($NATS_INBOX_PREFIX)")
}

// resolve fills in the values of the environment: see jetstream.DialConfig.FromEnv.
func (c connection) resolve(env func(string) string) connection {
	c.DialConfig = c.FromEnv(env)
	if c.timeout == 0 && env(timeoutEnv) == "" {
		c.RefusedWithin = refusedWithin
	}
	c.timeout = c.resolveTimeout(env)
	if c.dir != "" {
		c.contexts = env("XDG_CONFIG_HOME")
	}
	for _, file := range []*string{&c.Creds, &c.NKey, &c.TLSCA, &c.TLSCert, &c.TLSKey} {
		*file = resolvePath(c.dir, *file)
	}
	return c
}

// where names the place in messages, without the passwords in it.
func (c connection) where() string {
	servers := strings.Split(cmp.Or(c.URL, jetstream.DefaultURL), ",")
	for i, server := range servers {
		if u, err := url.Parse(server); err == nil {
			servers[i] = u.Redacted()
		}
	}
	switch {
	case c.Context == "":
		return strings.Join(servers, ",")
	case c.URL != "":
		return fmt.Sprintf("%s (context %s)", strings.Join(servers, ","), c.Context)
	}
	return "context " + c.Context
}

// connect reaches the engine within --timeout, or returns an error with the address.
func (a *app) connect(ctx context.Context) (*broker.Broker, func(), error) {
	return a.connectWith(ctx, broker.Config{})
}

func (a *app) connectWith(ctx context.Context, cfg broker.Config) (*broker.Broker, func(), error) {
	var err error
	if cfg.Redactor, err = a.redactor(); err != nil {
		return nil, nil, err
	}
	conn := a.conn.resolve(a.env)
	told := a.tellSilence("the engine at " + conn.where())
	engine, done, err := conn.open(ctx, cfg)
	told()
	if err != nil {
		return nil, nil, err
	}
	traces := a.startTraces(ctx, cfg.Log)
	a.traces, cfg.Observer = traces, telemetry.MultiObserver(cfg.Observer, traces.Observer())
	b, err := broker.New(engine, cfg)
	if err != nil {
		done()
		return nil, nil, err
	}
	a.engine = engine
	a.hasIndex = sync.OnceValue(func() bool { return indexAnswers(context.WithoutCancel(ctx), b) })
	return b, func() { done(); traces.Stop() }, nil
}

// shortWithin bounds the wait for an index that can find short tickets.
const shortWithin = 500 * time.Millisecond

func indexAnswers(ctx context.Context, b *broker.Broker) bool {
	ctx, cancel := context.WithTimeout(ctx, shortWithin)
	defer cancel()
	_, err := ask.Client{Asker: b}.Position(ctx, ask.PositionQuery{Question: ask.Question{WaitMS: -1}})
	return err == nil
}

// check refuses values that the dialer would take for a server that does not answer.
func (c connection) check() error {
	if err := c.checkURL(); err != nil {
		return err
	}
	if (c.TLSCert == "") != (c.TLSKey == "") {
		return usagef("--tlscert and --tlskey ($NATS_CERT, $NATS_KEY) go together: a certificate, and its key")
	}
	if strings.ContainsAny(c.InboxPrefix, " *>") || strings.HasSuffix(c.InboxPrefix, ".") {
		return usagef("--inbox-prefix %s: a subject without * and >, such as _INBOX_reviewer", c.InboxPrefix)
	}
	for _, file := range []struct{ flag, path string }{
		{"--creds", c.Creds}, {"--nkey", c.NKey}, {"--tlsca", c.TLSCA}, {"--tlscert", c.TLSCert}, {"--tlskey", c.TLSKey},
	} {
		if file.path == "" {
			continue
		}
		if _, err := os.Stat(file.path); err != nil {
			return fmt.Errorf("%s: %w", file.flag, err)
		}
	}
	return nil
}

// checkURL refuses addresses that the dialer would take for the engine on this machine, such as a
// scheme mistyped or a host left out: a handoff submitted there would never be found.
func (c connection) checkURL() error {
	if c.URL == "" {
		return nil
	}
	for _, server := range strings.Split(c.URL, ",") {
		server = strings.TrimSpace(server)
		if !strings.Contains(server, "://") {
			server = "nats://" + server
		}
		u, err := url.Parse(server)
		if err != nil || u.Host == "" || !slices.Contains([]string{"nats", "tls", "ws", "wss"}, u.Scheme) {
			return usagef("%s is not the URL of an engine; write nats://HOST:4222", c.where())
		}
	}
	return nil
}

func (c connection) open(ctx context.Context, cfg broker.Config) (*jetstream.Engine, func(), error) {
	if err := c.check(); err != nil {
		return nil, nil, err
	}
	engine, err := jetstream.Dial(ctx, c.dialConfig(jetstream.Config{Log: cfg.Log, Timeout: c.timeout}))
	if err != nil {
		return nil, nil, err
	}
	return engine, func() { _ = engine.Close() }, nil
}

// dial makes the connection alone: the server may have no streams, or keep nothing.
func (c connection) dial(ctx context.Context, more ...nats.Option) (*nats.Conn, error) {
	if err := c.check(); err != nil {
		return nil, err
	}
	cfg := c.dialConfig(jetstream.Config{Timeout: c.timeout})
	cfg.Options = more
	return jetstream.Connect(ctx, cfg)
}

func (c connection) dialConfig(engine jetstream.Config) jetstream.DialConfig {
	cfg := c.DialConfig
	cfg.Context, cfg.Name, cfg.Config = c.contextFile(), ourName(), engine
	return cfg
}

// ourName returns the name of our connection in the server's list.
func ourName() string {
	name := "handoff"
	if host, err := os.Hostname(); err == nil {
		name += " on " + host
	}
	return name
}

// contextFile is the name of the context, or its file where the environment is not the
// process's own.
func (c connection) contextFile() string {
	if c.Context == "" || c.contexts == "" || filepath.IsAbs(c.Context) {
		return c.Context
	}
	return filepath.Join(c.contexts, "nats", "context", c.Context+".json")
}

// redactFlags select the values that are removed from packages, results and all other words before
// they are written.
type redactFlags struct {
	patterns []string
	off      bool
}

func (f *redactFlags) declare(fs *pflag.FlagSet) {
	fs.StringArrayVar(&f.patterns, "redact", nil, "take out what this regular `EXPRESSION` matches as well (repeatable; $HANDOFF_REDACT names a file of them)")
	fs.BoolVar(&f.off, "no-redact", false, "write secrets as they are")
}

// redactor makes a redactor of the kinds that ship, the expressions of the file that
// the environment names, and those of the flags; nil is the kinds that ship alone.
func (a *app) redactor() (*redact.Redactor, error) {
	f, path := a.secrets, a.env("HANDOFF_REDACT")
	switch {
	case f.off:
		return new(redact.Redactor), nil
	case path == "" && len(f.patterns) == 0:
		return nil, nil
	}
	var added []string
	if path != "" {
		body, err := a.readFile(path)
		if err != nil {
			// Going on without it would write the secrets it was to keep out.
			return nil, usagef("HANDOFF_REDACT: %v", err)
		}
		for line := range strings.Lines(string(body)) {
			if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "#") {
				added = append(added, line)
			}
		}
	}
	redactor, err := redact.New(append(added, f.patterns...))
	if err != nil {
		return nil, usagef("--redact or $HANDOFF_REDACT: %v", err)
	}
	return redactor, nil
}

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
)

// connection is the address of the engine, as flags.
type connection struct {
	dir                                    string // where relative file names begin
	contexts                               string // $XDG_CONFIG_HOME, for contexts of the nats command line
	url, context, creds, nkey, inboxPrefix string
	tlsCA, tlsCert, tlsKey                 string
	timeout                                time.Duration // 0: the environment's, or the default
	refusedWithin                          time.Duration // 0: as long as timeout
}

func (c *connection) flags(fs *pflag.FlagSet) {
	fs.StringVarP(&c.url, "nats", "s", "", "engine to use: NATS URLs, comma-separated ($NATS_URL; default "+jetstream.DefaultURL+")")
	fs.StringVar(&c.context, "context", "", "context of the nats command line to connect with ($NATS_CONTEXT)")
	fs.StringVar(&c.creds, "creds", "", "credentials file ($NATS_CREDS)")
	fs.StringVar(&c.nkey, "nkey", "", "file with the seed of our nkey ($NATS_NKEY)")
	fs.StringVar(&c.tlsCA, "tlsca", "", "PEM file with the certificate authority to trust ($NATS_CA)")
	fs.StringVar(&c.tlsCert, "tlscert", "", "PEM file with the certificate to show to the server ($NATS_CERT)")
	fs.StringVar(&c.tlsKey, "tlskey", "", "PEM file with its key ($NATS_KEY)")
	durationVar(fs, &c.timeout, "timeout", 0, "how long each question to the engine is tried, 1s to 10m; a command asks several ($"+timeoutEnv+"; default "+explain.Duration(broker.TimeoutDefault)+", which outlasts an election)")
	fs.StringVar(&c.inboxPrefix, "inbox-prefix", "", "begins the subjects of answers to us, where a user may not read those of others ($NATS_INBOX_PREFIX)")
}

// resolve fills in the values of the environment: see jetstream.DialConfig.FromEnv.
func (c connection) resolve(env func(string) string) connection {
	cfg := jetstream.DialConfig{URL: c.url, Context: c.context, Creds: c.creds, NKey: c.nkey, InboxPrefix: c.inboxPrefix,
		TLSCA: c.tlsCA, TLSCert: c.tlsCert, TLSKey: c.tlsKey}.FromEnv(env)
	c.url, c.context, c.creds, c.nkey, c.inboxPrefix = cfg.URL, cfg.Context, cfg.Creds, cfg.NKey, cfg.InboxPrefix
	c.tlsCA, c.tlsCert, c.tlsKey = cfg.TLSCA, cfg.TLSCert, cfg.TLSKey
	if c.timeout == 0 && env(timeoutEnv) == "" {
		c.refusedWithin = refusedWithin
	}
	c.timeout = c.resolveTimeout(env)
	if c.dir != "" {
		c.contexts = env("XDG_CONFIG_HOME")
	}
	for _, file := range []*string{&c.creds, &c.nkey, &c.tlsCA, &c.tlsCert, &c.tlsKey} {
		*file = resolvePath(c.dir, *file)
	}
	return c
}

// where names the place in messages, without the passwords in it.
func (c connection) where() string {
	servers := strings.Split(cmp.Or(c.url, jetstream.DefaultURL), ",")
	for i, server := range servers {
		if u, err := url.Parse(server); err == nil {
			servers[i] = u.Redacted()
		}
	}
	switch {
	case c.context == "":
		return strings.Join(servers, ",")
	case c.url != "":
		return fmt.Sprintf("%s (context %s)", strings.Join(servers, ","), c.context)
	}
	return "context " + c.context
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
	if (c.tlsCert == "") != (c.tlsKey == "") {
		return usagef("--tlscert and --tlskey ($NATS_CERT, $NATS_KEY) go together: a certificate, and its key")
	}
	if strings.ContainsAny(c.inboxPrefix, " *>") || strings.HasSuffix(c.inboxPrefix, ".") {
		return usagef("--inbox-prefix %s: a subject without * and >, such as _INBOX_reviewer", c.inboxPrefix)
	}
	for _, file := range []struct{ flag, path string }{
		{"--creds", c.creds}, {"--nkey", c.nkey}, {"--tlsca", c.tlsCA}, {"--tlscert", c.tlsCert}, {"--tlskey", c.tlsKey},
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
	if c.url == "" {
		return nil
	}
	for _, server := range strings.Split(c.url, ",") {
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
func (c connection) dial(ctx context.Context) (*nats.Conn, error) { return c.dialWith(ctx) }

func (c connection) dialWith(ctx context.Context, more ...nats.Option) (*nats.Conn, error) {
	if err := c.check(); err != nil {
		return nil, err
	}
	cfg := c.dialConfig(jetstream.Config{Timeout: c.timeout})
	cfg.Options = more
	return jetstream.Connect(ctx, cfg)
}

func (c connection) dialConfig(engine jetstream.Config) jetstream.DialConfig {
	return jetstream.DialConfig{URL: c.url, Context: c.contextFile(), Creds: c.creds, NKey: c.nkey, InboxPrefix: c.inboxPrefix,
		TLSCA: c.tlsCA, TLSCert: c.tlsCert, TLSKey: c.tlsKey, Name: ourName(), RefusedWithin: c.refusedWithin, Config: engine}
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
	if c.context == "" || c.contexts == "" || filepath.IsAbs(c.context) {
		return c.context
	}
	return filepath.Join(c.contexts, "nats", "context", c.context+".json")
}

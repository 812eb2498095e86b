package cli

import (
	"cmp"
	"context"
	"fmt"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/broker/jetstream"
	"github.com/agenthandoff/handoff/internal/explain"
	"github.com/agenthandoff/handoff/internal/telemetry"
)

// connection says where the engine is, as flags.
type connection struct {
	dir                                    string // where relative file names begin
	contexts                               string // $XDG_CONFIG_HOME, for contexts of the nats command line
	url, context, creds, nkey, inboxPrefix string
	tlsCA, tlsCert, tlsKey                 string
	timeout                                time.Duration // 0: the environment's, or the default
}

func (c *connection) flags(fs *pflag.FlagSet) {
	fs.StringVarP(&c.url, "nats", "s", "", "engine to use: NATS URLs, comma-separated ($NATS_URL; default "+jetstream.DefaultURL+")")
	fs.StringVar(&c.context, "context", "", "context of the nats command line to connect with ($NATS_CONTEXT)")
	fs.StringVar(&c.creds, "creds", "", "credentials file ($NATS_CREDS)")
	fs.StringVar(&c.nkey, "nkey", "", "file with the seed of our nkey ($NATS_NKEY)")
	fs.StringVar(&c.tlsCA, "tlsca", "", "PEM file with the certificate authority to trust ($NATS_CA)")
	fs.StringVar(&c.tlsCert, "tlscert", "", "PEM file with the certificate to show to the server ($NATS_CERT)")
	fs.StringVar(&c.tlsKey, "tlskey", "", "PEM file with its key ($NATS_KEY)")
	durationVar(fs, &c.timeout, "timeout", 0, "how long whatever is asked of the engine is tried, 1s to 10m ($"+timeoutEnv+"; default "+explain.Duration(broker.TimeoutDefault)+", which outlasts an election)")
	fs.StringVar(&c.inboxPrefix, "inbox-prefix", "", "begins the subjects of answers to us, where a user may not read those of others ($NATS_INBOX_PREFIX)")
}

// resolve fills in what the environment says: see jetstream.DialConfig.FromEnv.
func (c connection) resolve(env func(string) string) connection {
	cfg := jetstream.DialConfig{URL: c.url, Context: c.context, Creds: c.creds, NKey: c.nkey, InboxPrefix: c.inboxPrefix,
		TLSCA: c.tlsCA, TLSCert: c.tlsCert, TLSKey: c.tlsKey}.FromEnv(env)
	c.url, c.context, c.creds, c.nkey, c.inboxPrefix = cfg.URL, cfg.Context, cfg.Creds, cfg.NKey, cfg.InboxPrefix
	c.tlsCA, c.tlsCert, c.tlsKey = cfg.TLSCA, cfg.TLSCert, cfg.TLSKey
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

// connect reaches the engine within --timeout, or says where it looked.
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
	return b, func() { done(); traces.Stop() }, nil
}

// check refuses what the dialer would take for a server that is not there.
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

// onEngine does something short with an engine: within one deadline with the connecting.
func (a *app) onEngine(ctx context.Context, do func(context.Context, *broker.Broker) error) error {
	return a.ask(ctx, func(ctx context.Context) error {
		b, done, err := a.connect(ctx)
		if err != nil {
			return err
		}
		defer done()
		return do(ctx, b)
	})
}

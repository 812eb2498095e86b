package cli

import (
	"context"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/nats-io/nats.go"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/broker/jetstream"
)

// checkURL refuses addresses that the dialer would take for the engine on this
// machine, such as a scheme mistyped or a host left out: what is submitted there
// would never be found.
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
		TLSCA: c.tlsCA, TLSCert: c.tlsCert, TLSKey: c.tlsKey, Name: ourName(), Config: engine}
}

// ourName is what the server lists our connection as.
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

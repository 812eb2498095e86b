package jetstream

import (
	"cmp"
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"sync/atomic"

	"github.com/cenkalti/backoff/v4"
	"github.com/nats-io/nats.go"
	"github.com/synadia-io/orbit.go/natscontext"
)

// FromEnv fills in what the environment says. What is set beats the environment: a context
// that was asked for is not bent by a NATS_URL that lies about. A URL and a context together
// are the context's credentials at that URL.
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

// where names the place in messages, without the secrets in it.
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

// dialContext connects with a context of the nats command line, which knows more ways to
// authenticate than DialConfig. It tries again until ctx ends.
func (cfg DialConfig) dialContext(ctx context.Context, options []nats.Option) (*nats.Conn, error) {
	var dialing atomic.Bool // set when the context was read and the options are applied
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

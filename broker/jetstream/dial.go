package jetstream

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/cenkalti/backoff/v4"
	"github.com/nats-io/nats.go"

	"github.com/agenthandoff/handoff/broker"
)

// DialConfig says where the engine is and who we are. What is left empty is not used.
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
	// TLSCert and TLSKey are the paths of PEM files with the certificate that we
	// show to the server, and its key: both or none.
	TLSCert, TLSKey string
	// InboxPrefix begins the subjects of all answers to us, where a user may not
	// subscribe to those of others; "" is _INBOX.
	InboxPrefix string
	// Name is shown in the server's list of connections.
	Name string
	// Options are applied last.
	Options []nats.Option

	Config
}

// DefaultURL is where handoff dev listens.
const DefaultURL = nats.DefaultURL

// ConnectOptions are those of every connection to the engine: it comes back by
// itself for as long as the process lives, and while it is gone a request
// fails instead of being kept for later, when no caller may want it any more.
func ConnectOptions(name string) []nats.Option {
	return []nats.Option{
		nats.Name(name),
		nats.MaxReconnects(-1),
		nats.IgnoreAuthErrorAbort(),
		nats.ReconnectWait(100 * time.Millisecond),
		nats.ReconnectJitter(100*time.Millisecond, 500*time.Millisecond),
		nats.ReconnectBufSize(-1),
		nats.PingInterval(10 * time.Second),
		nats.MaxPingsOutstanding(2),
		nats.Timeout(tryTimeout), // of each server
		// Errors of subscriptions reach those who wait on them, and denials those
		// who were denied (see denials); the default handler prints to stderr.
		nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {}),
	}
}

// Dial connects and opens the engine. It tries again, while no server answers and while
// a cluster elects, for Config.Timeout. Then its error wraps ErrUnreachable and
// says where it looked. A connection that was made once comes back for ever. To wait for an
// engine that is not there yet, see broker.WaitForEngine.
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

// Connect makes the connection of Dial, and asks nothing of the server: it may
// have no JetStream and no streams. The caller closes it. It tries again like Dial.
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
	return redial(ctx, cfg.where(), func() (*nats.Conn, error) { return nats.Connect(cmp.Or(cfg.URL, DefaultURL), options...) })
}

// redial dials until a server answers, refuses us, or ctx ends. An error that dial wraps
// with backoff.Permanent is returned as it is. All others wrap ErrUnreachable and say
// what to do, where that can be told. where must hold no secrets.
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

// dialOnce ends with ctx, too. A connection that is made later is closed.
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

// refusal says of a failed connection what to do about it, where the server has
// refused us or is another one than it should be: asking again does not help. Else nil.
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
		return unreachable("the certificate of the server at %s is for other names than the one in the URL", where)
	case errors.As(err, &unverified):
		return unreachable("the certificate of the server at %s is of no authority that is trusted here; name the PEM file of its authority with --tlsca ($NATS_CA)", where)
	case errors.As(err, &alert), errors.Is(err, nats.ErrTLS), strings.Contains(err.Error(), "remote error: tls:"):
		return unreachable("the server at %s does not accept our certificate; show it one with --tlscert and --tlskey ($NATS_CERT, $NATS_KEY)", where)
	case errors.Is(err, nats.ErrSecureConnWanted), errors.As(err, &record):
		return unreachable("the server at %s has no TLS; write nats:// instead of tls://", where)
	}
	return nil
}

// withoutSecrets returns a list of server URLs as it may be shown.
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

package broker

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
)

// DialConfig says where the engine is and who we are. What is left empty is not used.
type DialConfig struct {
	// URL is one or more servers, comma-separated; "" is nats://127.0.0.1:4222.
	URL string
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

	JetStreamConfig
}

// DefaultURL is where handoff dev listens.
const DefaultURL = nats.DefaultURL

// ConnectOptions are those of every connection to the engine: it comes back by
// itself for as long as the process lives, and while it is gone a request
// fails instead of being kept for later, when nobody may want it any more.
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
		nats.Timeout(dialPatience - 500*time.Millisecond),
		// Errors of subscriptions reach those who wait on them, and denials those
		// who were denied (see denials); the default handler prints to stderr.
		nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {}),
	}
}

// Dial connects and opens the engine. It gives up within 3 s with an error
// that wraps ErrUnreachable and says where it looked. A connection that was
// made once comes back for ever.
func Dial(ctx context.Context, cfg DialConfig) (*JetStream, error) {
	ctx, cancel := context.WithTimeout(ctx, dialPatience)
	defer cancel()
	nc, err := Connect(cfg)
	if err != nil {
		return nil, err
	}
	j, err := open(ctx, nc, cfg.JetStreamConfig)
	if err != nil {
		nc.Close()
		return nil, fmt.Errorf("at %s: %w", withoutSecrets(cmp.Or(cfg.URL, DefaultURL)), err)
	}
	j.owned = true
	return j, nil
}

// Connect makes the connection of Dial, and asks nothing of the server: it may
// have no JetStream and no streams. The caller closes it.
func Connect(cfg DialConfig) (*nats.Conn, error) {
	where := cmp.Or(cfg.URL, DefaultURL)
	options := ConnectOptions(cfg.Name)
	servers := strings.Count(where, ",") + 1
	options = append(options, nats.Timeout((dialPatience-500*time.Millisecond)/time.Duration(servers)))
	identity, err := cfg.Identity()
	if err != nil {
		return nil, err
	}
	options = append(options, identity...)
	nc, err := nats.Connect(where, append(options, cfg.Options...)...)
	if err != nil {
		return nil, ConnectError(withoutSecrets(where), err)
	}
	return nc, nil
}

// ConnectError says of a failed connection what to do about it, where that can be
// told. It wraps ErrUnreachable. where must hold no secrets.
func ConnectError(where string, err error) error {
	unreachable := func(format string, args ...any) error {
		return fmt.Errorf("%w: "+format+": %w", append(append([]any{ErrUnreachable}, args...), err)...)
	}
	var (
		unverified *tls.CertificateVerificationError
		host       x509.HostnameError
		alert      tls.AlertError
		record     tls.RecordHeaderError
	)
	switch {
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
	return fmt.Errorf("%w: no NATS server answers at %s (%w); start one: handoff dev", ErrUnreachable, where, err)
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

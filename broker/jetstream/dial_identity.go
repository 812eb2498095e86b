package jetstream

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"os"

	"github.com/nats-io/nats.go"
)

// Identity are the options that say who we are and whom we trust: of what the
// configuration holds, nothing else. Files that are of no use are told by name here:
// the library would find them on the way, and it would look as if no server answered.
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

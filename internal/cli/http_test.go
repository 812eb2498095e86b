package cli

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"
)

// TestListenHTTP: with a certificate a gateway listens on any address, by TLS, for the hosts of the
// certificate.
func TestListenHTTP(t *testing.T) {
	dir := t.TempDir()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	about := &x509.Certificate{SerialNumber: big.NewInt(1), DNSNames: []string{"handoff.example.com"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour)}
	cert, err := x509.CreateCertificate(rand.Reader, about, about, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	for name, block := range map[string]*pem.Block{"cert.pem": {Type: "CERTIFICATE", Bytes: cert}, "key.pem": {Type: "PRIVATE KEY", Bytes: secret}} {
		if err := os.WriteFile(filepath.Join(dir, name), pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	a := &app{dir: dir}
	listener, hosts, err := a.listenHTTP(t.Context(), &serveFlags{HTTP: "0.0.0.0:0", Cert: "cert.pem", Key: "key.pem"})
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	if !slices.Equal(hosts, []string{"handoff.example.com", "127.0.0.1"}) {
		t.Errorf("hosts %v", hosts)
	}
	go func() {
		if conn, err := listener.Accept(); err == nil {
			_ = conn.(*tls.Conn).Handshake()
			conn.Close()
		}
	}()
	roots := x509.NewCertPool()
	parsed, err := x509.ParseCertificate(cert)
	if err != nil {
		t.Fatal(err)
	}
	roots.AddCert(parsed)
	_, port, _ := net.SplitHostPort(listener.Addr().String())
	conn, err := tls.Dial("tcp", net.JoinHostPort("127.0.0.1", port), &tls.Config{RootCAs: roots, ServerName: "handoff.example.com", MinVersion: tls.VersionTLS12})
	if err != nil {
		t.Fatal(err)
	}
	conn.Close()
	for name, flags := range map[string]serveFlags{
		"no certificate": {HTTP: "0.0.0.0:0"},
		"no key":         {HTTP: "127.0.0.1:0", Cert: "cert.pem"},
		"no file":        {HTTP: "127.0.0.1:0", Cert: "none.pem", Key: "key.pem"},
		"no address":     {HTTP: "7070x"},
	} {
		if listener, _, err := a.listenHTTP(t.Context(), &flags); err == nil {
			listener.Close()
			t.Errorf("%s: it listens", name)
		}
	}
}

package notify

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/protocol"
)

const (
	answerBytesMax = 4 << 10 // of a receiver's answer, which is not used
	headerBytesMax = 16 << 10
	secretPrefix   = "whsec_"
	secretBytesMin = 24
	secretBytesMax = 64
)

// Webhook sends notifications to a URL, signed as Standard Webhooks describes it.
type Webhook struct {
	url    string
	keys   [][]byte
	client *http.Client
}

// NewWebhook returns a Webhook. secrets has a secret of 24 to 64 bytes on each line, as whsec_ and
// base64: with two of them a receiver can change from one to the other. Networks that are private to
// this machine or its site are refused, after the name of the host was resolved, except for allowed.
func NewWebhook(address, secrets string, allowed []netip.Prefix) (*Webhook, error) {
	u, err := url.Parse(address)
	if err != nil || u.Host == "" || u.Scheme != "https" && u.Scheme != "http" {
		return nil, protocol.Errorf(protocol.CodeInvalid, "url", "must begin with https:// or http:// and have a host")
	}
	w := &Webhook{url: address}
	for _, line := range strings.Fields(secrets) {
		encoded, ok := strings.CutPrefix(line, secretPrefix)
		key, err := base64.StdEncoding.DecodeString(encoded)
		if !ok || err != nil || len(key) < secretBytesMin || len(key) > secretBytesMax {
			return nil, protocol.Errorf(protocol.CodeInvalid, "secret-file", "a line must be %s and the base64 of %d to %d bytes: printf 'whsec_%%s\\n' \"$(openssl rand -base64 32)\" > FILE", secretPrefix, secretBytesMin, secretBytesMax)
		}
		w.keys = append(w.keys, key)
	}
	if len(w.keys) == 0 {
		return nil, protocol.Errorf(protocol.CodeMissing, "secret-file", "has no secret")
	}
	if addr, err := netip.ParseAddr(u.Hostname()); err == nil {
		if err := checkAddr(addr, allowed); err != nil {
			return nil, protocol.Errorf(protocol.CodeInvalid, "url", "%v", err)
		}
	}
	dialer := &net.Dialer{Control: func(_, address string, _ syscall.RawConn) error {
		to, err := netip.ParseAddrPort(address)
		if err != nil {
			return err
		}
		return checkAddr(to.Addr(), allowed)
	}}
	// Without a proxy: it would resolve the name itself, and the check would see only its address.
	w.client = &http.Client{
		Transport:     &http.Transport{DialContext: dialer.DialContext, MaxResponseHeaderBytes: headerBytesMax, IdleConnTimeout: time.Minute},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	return w, nil
}

// special are the networks that are not public, in addition to those that netip.Addr knows. Some
// have the address of another network within.
var special = []netip.Prefix{
	netip.MustParsePrefix("0.0.0.0/8"), netip.MustParsePrefix("100.64.0.0/10"), netip.MustParsePrefix("192.0.0.0/24"),
	netip.MustParsePrefix("198.18.0.0/15"), netip.MustParsePrefix("240.0.0.0/4"), netip.MustParsePrefix("64:ff9b::/96"),
	netip.MustParsePrefix("64:ff9b:1::/48"), netip.MustParsePrefix("2001::/32"), netip.MustParsePrefix("2002::/16"), netip.MustParsePrefix("fec0::/10"),
}

// checkAddr refuses an address that is not public, unless it is allowed.
func checkAddr(addr netip.Addr, allowed []netip.Prefix) error {
	addr = addr.Unmap().WithZone("")
	within := func(nets []netip.Prefix) bool {
		return slices.ContainsFunc(nets, func(n netip.Prefix) bool { return n.Contains(addr) })
	}
	if within(allowed) || addr.IsGlobalUnicast() && !addr.IsPrivate() && !within(special) {
		return nil
	}
	return fmt.Errorf("%s is not a public address; if that is meant, add --allow-net %s", addr, netip.PrefixFrom(addr, addr.BitLen()))
}

// Send implements Sender. A status other than 2xx is an error, and 410 is ErrGone.
func (w *Webhook) Send(ctx context.Context, id string, _ Notification, body []byte) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, w.url, bytes.NewReader(body))
	if err != nil {
		return err
	}
	now := strconv.FormatInt(time.Now().Unix(), 10)
	var signatures []string
	for _, key := range w.keys {
		mac := hmac.New(sha256.New, key)
		fmt.Fprintf(mac, "%s.%s.%s", id, now, body)
		signatures = append(signatures, "v1,"+base64.StdEncoding.EncodeToString(mac.Sum(nil)))
	}
	for name, value := range map[string]string{"Content-Type": "application/json", "User-Agent": "handoff",
		"Webhook-Id": id, "Webhook-Timestamp": now, "Webhook-Signature": strings.Join(signatures, " ")} {
		request.Header.Set(name, value)
	}
	answer, err := w.client.Do(request)
	if err != nil {
		var named *url.Error // with the URL, which may have a secret in it
		if errors.As(err, &named) {
			err = named.Err
		}
		return err
	}
	defer func() { _ = answer.Body.Close() }()
	_, _ = io.CopyN(io.Discard, answer.Body, answerBytesMax) // so that the connection can be used again
	switch {
	case answer.StatusCode == http.StatusGone:
		return ErrGone
	case answer.StatusCode/100 != 2:
		return fmt.Errorf("the receiver answered %s", answer.Status)
	}
	return nil
}

// Signal sends a signal of one name for each notification. The handoffs of its rules are in the lineage
// of the handoff that the notification is about.
type Signal struct {
	Name   string
	Broker *broker.Broker
}

// signalPayload is the payload of such a signal: flat, so that a rule's condition can compare each
// field.
type signalPayload struct {
	Kind      string    `json:"kind"`
	Timestamp time.Time `json:"timestamp"`
	Ticket    string    `json:"ticket"`
	Agent     string    `json:"agent"`
	Sentence  string    `json:"sentence"`
	Summary
}

// Send implements Sender.
func (s *Signal) Send(ctx context.Context, id string, n Notification, _ []byte) error {
	payload, err := protocol.Marshal(signalPayload{strings.TrimPrefix(n.Type, typePrefix), n.Timestamp, n.Data.Ticket, n.Data.Agent, n.Data.Sentence, n.Data.State})
	if err != nil {
		return err
	}
	return s.Broker.Rules().Send(ctx, protocol.Signal{Name: s.Name, ID: id, Parent: n.Data.Ticket, Payload: payload})
}

// Program runs a shell command for each notification. It gets the notification in JSON on its
// standard input, and its main parts in the environment. An exit code other than 0 is an error.
type Program struct {
	Line           string
	Dir            string   // "" is the directory of this process
	Env            []string // NAME=value
	Stdout, Stderr io.Writer
}

// Send implements Sender.
func (p *Program) Send(ctx context.Context, id string, n Notification, body []byte) error {
	cmd := exec.CommandContext(ctx, "sh", "-c", p.Line)
	cmd.Dir, cmd.Stdin, cmd.Stdout, cmd.Stderr, cmd.WaitDelay = p.Dir, bytes.NewReader(append(body, '\n')), p.Stdout, p.Stderr, time.Second
	cmd.Env = append(p.Env, "HANDOFF_NOTIFICATION="+id, "HANDOFF_TYPE="+n.Type, "HANDOFF_TICKET="+n.Data.Ticket,
		"HANDOFF_SENTENCE="+protocol.Printable(n.Data.Sentence))
	err := cmd.Run()
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

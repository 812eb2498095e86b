package cli

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"github.com/spf13/cobra"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/explain"
	httpgateway "github.com/agenthandoff/handoff/internal/gateway/http"
	"github.com/agenthandoff/handoff/internal/telemetry"
	"github.com/agenthandoff/handoff/protocol"
)

// Where dev serves HTTP without --http, and the files of dev for it, in --data.
const (
	httpDefault = "127.0.0.1:7070"
	tokensFile  = "tokens.json"
	devTokenIn  = "http.token" // the token of a person, readable by its owner alone
	devURLIn    = "http.url"   // while it serves
)

// serveFlags are the flags of serve.
type serveFlags struct {
	serviceFlags `flag:""`
	HTTP         string `flag:"http" doc:"listen at {ADDR}"`
	Tokens       string `flag:"tokens" doc:"read the callers from {FILE}, which only you may read (required)"`
	Cert         string `flag:"tls-cert" doc:"serve HTTPS with the certificate of {FILE}"`
	Key          string `flag:"tls-key" doc:"the private key of the certificate, in {FILE}"`
	Proxied      string `flag:"behind-proxy" doc:"a proxy serves it under these {HOSTS}, separated by commas"`
	ReadOnly     bool   `flag:"read-only" doc:"the page shows, and has no acts"`
	Base         string `flag:"base-path" doc:"a proxy serves it below this {PATH}, as /handoff"`
}

func newServe(a *app) *cobra.Command {
	flags := serveFlags{HTTP: httpDefault}
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Serve agents and people over HTTP, for an engine elsewhere",
		Long: `Serve answers the operations of Handoff over HTTP, to callers with a token: "handoff
token" makes tokens. "handoff dev" serves HTTP by itself. docs/how-to/http.md has the
routes; GET /v1/openapi.json describes them for programs. People sign in to the page at
/ui with a token, or a link of "handoff token link".

A port alone, :7070, is this machine's alone. Another address needs --tls-cert and
--tls-key, or --behind-proxy with the names that clients use, for a proxy that has the
certificate. Requests for other hosts are refused, and those of other web sites.

Run several on one engine: they keep nothing that may be lost. It prints "ready" and its
URL on stdout when it answers, and its log on stderr.

` + waitHelp + `

` + metricsHelp + `

Exit codes: 0 stopped with Ctrl-C; 6 the engine is not reachable.`,
		Example: `  handoff token new --tokens tokens.json --name coder --role agent
  handoff serve --tokens tokens.json -s nats://engine:4222
  handoff serve --tokens tokens.json --http 0.0.0.0:7070 --behind-proxy handoff.example.com`,
		Args: takes(),
		RunE: func(cmd *cobra.Command, _ []string) error { return a.serveHTTP(cmd.Context(), &flags) },
	}
	bind(cmd.Flags(), &flags)
	return cmd
}

// serveHTTP serves until ctx ends.
func (a *app) serveHTTP(ctx context.Context, flags *serveFlags) error {
	if flags.Tokens == "" {
		return usagef("serve needs --tokens FILE; handoff token new --tokens FILE makes one")
	}
	tokens, err := httpgateway.OpenTokens(a.path(flags.Tokens))
	if err != nil {
		return err
	}
	listener, hosts, err := a.listenHTTP(ctx, flags)
	if err != nil {
		return err
	}
	defer listener.Close()
	return a.serve(ctx, &flags.serviceFlags, func(b *broker.Broker, log *slog.Logger, shown *showing) error {
		g, err := httpgateway.New(b, httpgateway.Config{Tokens: tokens, BasePath: flags.Base, Hosts: hosts, Log: log,
			Secure: flags.Cert != "" || flags.Proxied != "", ReadOnly: flags.ReadOnly, Command: commandLine})
		if err != nil {
			return err
		}
		shown.engineAnswers(b)
		shown.http(g)
		shown.started()
		url := "http://"
		if flags.Cert != "" {
			url = "https://"
		}
		if err := a.ready(url+listener.Addr().String()+flags.Base, shown.url(), ""); err != nil {
			return err
		}
		return g.Serve(ctx, listener)
	})
}

// listenHTTP listens at --http, and returns the hosts that a request may name; nil is this machine
// alone.
func (a *app) listenHTTP(ctx context.Context, flags *serveFlags) (net.Listener, []string, error) {
	address, err := telemetry.ListenAddress(flags.HTTP)
	if err != nil {
		return nil, nil, usagef("--http: %v", err)
	}
	switch {
	case (flags.Cert == "") != (flags.Key == ""):
		return nil, nil, usagef("--tls-cert and --tls-key belong together")
	case !isLocal(address) && flags.Cert == "" && flags.Proxied == "":
		return nil, nil, usagef("--http %s: tokens would cross the network in the clear; give --tls-cert and --tls-key, or --behind-proxy for a proxy with a certificate", address)
	}
	var hosts []string
	if flags.Proxied != "" {
		hosts = append(strings.Split(flags.Proxied, ","), "localhost", "127.0.0.1", "::1")
	}
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", address)
	if err != nil {
		return nil, nil, fmt.Errorf("--http: %w", cannotListen(address, err, "--http 127.0.0.1:0"))
	}
	if flags.Cert == "" {
		return listener, hosts, nil
	}
	pair, err := tls.LoadX509KeyPair(a.path(flags.Cert), a.path(flags.Key))
	if err != nil {
		return nil, nil, errors.Join(fmt.Errorf("--tls-cert: %w", err), listener.Close())
	}
	if leaf, err := x509.ParseCertificate(pair.Certificate[0]); err == nil {
		hosts = append(hosts, leaf.DNSNames...)
		for _, ip := range leaf.IPAddresses {
			hosts = append(hosts, ip.String())
		}
	}
	return tls.NewListener(listener, &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12}), hosts, nil
}

// isLocal reports whether an address is of the loopback interface.
func isLocal(address string) bool {
	host, _, _ := net.SplitHostPort(address)
	return host == "localhost" || net.ParseIP(host).IsLoopback()
}

// devHTTP is the gateway of dev; nil serves nothing.
type devHTTP struct {
	listener net.Listener
	dir      string
}

// listenDev listens for the gateway of dev: at --http, else at the default, or at a free port if that
// is taken.
func (a *app) listenDev(ctx context.Context, cfg *devConfig) (*devHTTP, error) {
	if cfg.NoHTTP {
		return nil, nil
	}
	if address, err := telemetry.ListenAddress(cmp.Or(cfg.HTTP, httpDefault)); err == nil && !isLocal(address) {
		return nil, usagef("--http %s: dev serves this machine alone; handoff serve serves a network", address)
	}
	listener, _, err := a.listenHTTP(ctx, &serveFlags{HTTP: cmp.Or(cfg.HTTP, httpDefault)})
	if err != nil && cfg.HTTP == "" {
		listener, _, err = a.listenHTTP(ctx, &serveFlags{HTTP: "127.0.0.1:0"})
	}
	if err != nil {
		return nil, err
	}
	return &devHTTP{listener, cfg.Dir}, nil
}

// url is its URL; empty without a gateway.
func (d *devHTTP) url() string {
	if d == nil {
		return ""
	}
	return "http://" + d.address()
}

// address is the host and port of url.
func (d *devHTTP) address() string {
	if d == nil {
		return ""
	}
	return d.listener.Addr().String()
}

func (d *devHTTP) close() {
	if d != nil {
		_ = d.listener.Close()
	}
}

// serve answers until ctx ends; the returned function waits for that. Errors are logged: the engine
// goes on without.
func (d *devHTTP) serve(ctx context.Context, b *broker.Broker, shown *showing, log *slog.Logger) (wait func()) {
	var serving sync.WaitGroup
	if d == nil {
		return serving.Wait
	}
	g, err := d.open(b, log)
	if err != nil {
		log.Error("no HTTP here", "err", err)
		return serving.Wait
	}
	shown.http(g)
	serving.Go(func() {
		if err := g.Serve(ctx, d.listener); err != nil {
			log.Error("HTTP has ended", "err", err)
		}
		_ = os.Remove(filepath.Join(d.dir, devURLIn))
	})
	return serving.Wait
}

// open makes the gateway, and the files that dev env reads.
func (d *devHTTP) open(b *broker.Broker, log *slog.Logger) (*httpgateway.Gateway, error) {
	file, tokenIn := filepath.Join(d.dir, tokensFile), filepath.Join(d.dir, devTokenIn)
	tokens, err := httpgateway.OpenTokens(file)
	if err != nil {
		return nil, err
	}
	token, err := readLine(tokenIn)
	if err == nil {
		_, err = tokens.Caller(token)
	}
	if err != nil { // none yet, or it was revoked
		_ = httpgateway.RevokeToken(file, protocol.Human)
		token, err = httpgateway.NewToken(file, httpgateway.Grant{Name: protocol.Human, Role: httpgateway.RoleAdmin})
		if err == nil {
			err = os.WriteFile(tokenIn, []byte(token+"\n"), 0o600)
		}
	}
	if err == nil {
		err = os.WriteFile(filepath.Join(d.dir, devURLIn), []byte(d.url()+"\n"), 0o600)
	}
	if err != nil {
		return nil, err
	}
	return httpgateway.New(b, httpgateway.Config{Tokens: tokens, Log: log, Command: commandLine})
}

// readLine reads a file of one line.
func readLine(path string) (string, error) {
	text, err := os.ReadFile(path)
	return strings.TrimSpace(string(text)), err
}

// devEnv is the answer of dev env.
type devEnv struct {
	URL   string `json:"url"`
	Token string `json:"token"`
}

func newDevEnv(a *app) *cobra.Command {
	var at dataFlag
	cmd := &cobra.Command{
		Use:   "env",
		Short: "Print the URL and the token of the HTTP of handoff dev, for a shell",
		Long: `Env prints HANDOFF_URL and HANDOFF_TOKEN as commands for a shell. The token may do
everything, as a person. "handoff token new" makes tokens for agents.`,
		Example: `  eval "$(handoff dev env)"
  curl -H "Authorization: Bearer $HANDOFF_TOKEN" $HANDOFF_URL/v1/inbox`,
		Args: takes(),
		RunE: func(*cobra.Command, []string) error {
			if err := a.devDir(&at); err != nil {
				return err
			}
			url, err := readLine(filepath.Join(at.Dir, devURLIn))
			if err != nil {
				return fmt.Errorf("no handoff dev serves HTTP with its data in %s: start it, or give its --data", at.Dir)
			}
			token, err := readLine(filepath.Join(at.Dir, devTokenIn))
			if err != nil {
				return err
			}
			return a.line(devEnv{url, token}, "export HANDOFF_URL=%s\nexport HANDOFF_TOKEN=%s\n", url, token)
		},
	}
	bind(cmd.Flags(), &at)
	return cmd
}

// dataFlag is the directory of dev.
type dataFlag struct {
	Dir string `flag:"data" doc:"directory of the ledger (default ~/.local/share/handoff/dev, or under $XDG_DATA_HOME)"`
}

// devDir completes the directory of dev.
func (a *app) devDir(at *dataFlag) (err error) {
	if at.Dir == "" {
		at.Dir, err = a.dataDir()
	}
	at.Dir = a.path(at.Dir)
	return err
}

func newToken(a *app) *cobra.Command {
	return group(&cobra.Command{
		Use:   "token",
		Short: "Make, list and revoke tokens for HTTP, and links to sign in",
		Long: `Programs and people show a token to "handoff serve", and to the HTTP of "handoff dev".
Its file has only hashes, and belongs to its owner alone (mode 600). A gateway reads it
again when it changes.

--tokens FILE names the file, or --data DIR that of a handoff dev, which is the default.`,
		Example: `  handoff token new --name coder --role agent
  handoff token list
  handoff token revoke coder`,
	}, newTokenNew(a), newTokenLink(a), newTokenList(a), newTokenRevoke(a))
}

// onTokens completes a command on a file of tokens, which its flags name.
func (a *app) onTokens(cmd *cobra.Command, run func(path string, args []string) error) *cobra.Command {
	var flags struct {
		dataFlag `flag:""`
		File     string `flag:"tokens" doc:"{FILE} of the tokens (default: that of handoff dev)"`
	}
	bind(cmd.Flags(), &flags)
	if cmd.Args == nil {
		cmd.Args = takes()
	}
	cmd.RunE = func(_ *cobra.Command, args []string) error {
		if flags.File != "" {
			return run(a.path(flags.File), args)
		}
		if err := a.devDir(&flags.dataFlag); err != nil {
			return err
		}
		return run(filepath.Join(flags.Dir, tokensFile), args)
	}
	return cmd
}

// madeToken is the answer of token new.
type madeToken struct {
	Name  string `json:"name"`
	Token string `json:"token"`
}

func newTokenNew(a *app) *cobra.Command {
	var grant httpgateway.Grant
	role := string(httpgateway.RoleAgent)
	cmd := a.onTokens(&cobra.Command{
		Use:   "new",
		Short: "Make a token and print it, once",
		Long: `New makes a token, and prints it this one time: the file has only its hash. The role is

  agent      submits, answers, works and reads as its --agent (default: its name)
  reader     reads for its --agent and --source, or everything without them
  submitter  submits as its --source (default: its name), cancels, answers
  operator   sees all handoffs and intervenes
  admin      everything

Acts are recorded with the name of the token; an agent's with that of the agent. Call a
person's token human, as an operator or an admin, so that it may decide for people.`,
		Example: `  handoff token new --name coder --role agent
  handoff token new --name ci --role submitter --source ci --source release
  handoff token new --name human --role operator --tokens tokens.json`,
	}, func(path string, _ []string) error {
		grant.Role = httpgateway.Role(role)
		token, err := httpgateway.NewToken(path, grant)
		if err != nil {
			return err
		}
		return a.line(madeToken{grant.Name, token}, "%s\n", token)
	})
	fs := cmd.Flags()
	fs.StringVar(&grant.Name, "name", "", "`NAME` of the token (required)")
	fs.StringVar(&role, "role", role, "its rights: agent, reader, submitter, operator or admin")
	fs.StringArrayVar(&grant.Agents, "agent", nil, "it acts as this `AGENT`; repeatable")
	fs.StringArrayVar(&grant.Sources, "source", nil, "it submits as this `SOURCE`; repeatable")
	a.words(cmd, "role", "agent", "reader", "submitter", "operator", "admin")
	return cmd
}

// signInLink is a link that signs a browser in to the page of a gateway at url.
func signInLink(file, name, url string) (string, error) {
	secret, err := httpgateway.NewLink(file, name)
	return url + "/ui/in?link=" + secret, err
}

func newTokenLink(a *app) *cobra.Command {
	var name, at string
	cmd := a.onTokens(&cobra.Command{
		Use:   "link",
		Short: "Print a link that signs a browser in to the page, once",
		Long: `Link prints a link to the page of a gateway. It signs a browser in as the token of
--name, once, within an hour; the session lasts 12 hours, or until the token is revoked.

Without --url it is for the handoff dev of --data.`,
		Example: `  handoff token link
  handoff token link --tokens tokens.json --name human --url https://handoff.example.com`,
	}, func(path string, _ []string) (err error) {
		if at == "" {
			if at, err = readLine(filepath.Join(filepath.Dir(path), devURLIn)); err != nil {
				return usagef("token link needs --url: no handoff dev serves HTTP with the data of %s", path)
			}
		}
		link, err := signInLink(path, name, strings.TrimSuffix(at, "/"))
		if err != nil {
			return err
		}
		return a.line(map[string]string{"link": link}, "%s\n", link)
	})
	cmd.Flags().StringVar(&name, "name", protocol.Human, "`NAME` of the token")
	cmd.Flags().StringVar(&at, "url", "", "`URL` of the gateway, with its --base-path")
	return cmd
}

func newTokenList(a *app) *cobra.Command {
	return a.onTokens(&cobra.Command{
		Use:     "list",
		Short:   "List the tokens of a file, without their secrets",
		Example: "  handoff token list",
	}, func(path string, _ []string) error {
		grants, err := httpgateway.ListTokens(path)
		return printedList(a, grants, err, func(grants []httpgateway.Grant) error {
			return a.table(rowsOf("NAME|ROLE|AGENTS|SOURCES|MADE", grants, func(g httpgateway.Grant) []any {
				return []any{g.Name, string(g.Role), strings.Join(g.Agents, ", "), strings.Join(g.Sources, ", "), explain.Ago(g.Created, a.now())}
			}))
		})
	})
}

func newTokenRevoke(a *app) *cobra.Command {
	return a.onTokens(&cobra.Command{
		Use:     "revoke NAME",
		Short:   "Revoke the token of a name, at once",
		Example: "  handoff token revoke coder",
		Args:    takes("NAME"),
	}, func(path string, args []string) error {
		if err := httpgateway.RevokeToken(path, args[0]); err != nil {
			return err
		}
		return a.line(map[string]string{"revoked": args[0]}, "revoked %s\n", args[0])
	})
}

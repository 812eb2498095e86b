package cli

import (
	"cmp"
	"context"
	_ "embed"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/spf13/cobra"

	"github.com/agenthandoff/handoff/api"
	mcpgateway "github.com/agenthandoff/handoff/internal/gateway/mcp"
)

func newMCP(a *app) *cobra.Command {
	var agent, hostProgram string
	cmd := &cobra.Command{
		Use:   "mcp",
		Short: "Serve a host of models over the Model Context Protocol",
		Long: `Mcp serves the tools of Handoff on standard input and output, for a host of models that
starts it: hand a task to a specialist, check it, answer; and take work, report, finish.
It acts as --agent, inside of the engine's account. Without that account, and for hosts
that know the extension Tasks over HTTP alone, use /mcp of "handoff dev" or "handoff
serve" with a token of the agent.

--print-config prints the configuration of a host for /mcp, with HANDOFF_URL if that is
set; the token stays in the environment. docs/mcp.md has each tool.

Exit codes: 0 the host has ended it; 6 the engine is not reachable.`,
		Example: `  handoff mcp --print-config claude
  handoff mcp --agent lead -s nats://engine:4222`,
		Args: takes(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if hostProgram != "" {
				return a.printMCPConfig(hostProgram)
			}
			if agent == "" {
				return usagef("mcp needs --agent, as whom the model acts; or --print-config for a host that uses HTTP")
			}
			return a.serveMCP(cmd.Context(), agent)
		},
	}
	cmd.Flags().StringVar(&agent, "agent", "", "act as `AGENT`")
	cmd.Flags().StringVar(&hostProgram, "print-config", "", "print the configuration of a `HOST`: claude, cursor, codex or vscode")
	a.words(cmd, "print-config", "claude", "cursor", "codex", "vscode")
	return cmd
}

// serveMCP serves on standard input and output.
func (a *app) serveMCP(ctx context.Context, agent string) error {
	b, done, err := a.connect(ctx)
	if err != nil {
		return err
	}
	defer done()
	g, err := mcpgateway.New(api.New(b, api.Config{}), mcpgateway.Config{Log: slog.New(slog.NewTextHandler(a.err, nil)),
		Caller: func(http.Header) (api.Caller, error) { return api.Agent(agent), nil }})
	if err != nil {
		return err
	}
	return g.Run(ctx, &mcp.IOTransport{Reader: io.NopCloser(a.in), Writer: nopWriteCloser{a.out}})
}

type nopWriteCloser struct{ io.Writer }

func (nopWriteCloser) Close() error { return nil }

// mcpHosts are the hosts that read their servers as JSON: the file, the name of the servers in it, and the word for
// the token, which stays in the environment.
var mcpHosts = map[string]struct{ file, servers, token string }{
	"claude": {".mcp.json", "mcpServers", "${HANDOFF_TOKEN}"},
	"cursor": {".cursor/mcp.json", "mcpServers", "${env:HANDOFF_TOKEN}"},
	"vscode": {".vscode/mcp.json", "servers", "${env:HANDOFF_TOKEN}"},
}

// printMCPConfig prints the configuration of a host for /mcp.
func (a *app) printMCPConfig(name string) error {
	url := cmp.Or(a.env("HANDOFF_URL"), "http://"+httpDefault) + "/mcp"
	if name == "codex" {
		_, err := fmt.Fprintf(a.out, "# ~/.codex/config.toml\n[mcp_servers.handoff]\nurl = %q\nbearer_token_env_var = \"HANDOFF_TOKEN\"\n", url)
		return err
	}
	host, known := mcpHosts[name]
	if !known {
		return usagef("--print-config %s: there are claude, cursor, codex and vscode", name)
	}
	server := map[string]any{"type": "http", "url": url, "headers": map[string]string{"Authorization": "Bearer " + host.token}}
	text, err := json.MarshalIndent(map[string]any{host.servers: map[string]any{"handoff": server}}, "", "  ")
	if err != nil {
		return err
	}
	a.notef("handoff: this is %s, in the project's folder\n", host.file)
	_, err = fmt.Fprintf(a.out, "%s\n", text)
	return err
}

// skill teaches a model the command line.
//
//go:embed skill.txt
var skill string

func newSkill(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "skill",
		Short: "Print a skill that teaches a model this command line",
		Long: `Skill prints a file SKILL.md for hosts of models that read skills. It costs a model a
hundred tokens until it is used, and needs no server.`,
		Example: `  mkdir -p .claude/skills/handoff && handoff skill > .claude/skills/handoff/SKILL.md`,
		Args:    takes(),
		RunE: func(*cobra.Command, []string) error {
			_, err := fmt.Fprint(a.out, skill)
			return err
		},
	}
}

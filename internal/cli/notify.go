package cli

import (
	"errors"
	"log/slog"
	"net/netip"
	"os"
	"slices"

	"github.com/spf13/cobra"

	"github.com/agenthandoff/handoff/broker"
	"github.com/agenthandoff/handoff/internal/notify"
	"github.com/agenthandoff/handoff/protocol"
	"github.com/agenthandoff/handoff/worker"
)

// notifyFlags are the flags of notify.
type notifyFlags struct {
	serviceFlags `flag:""`
	URL          string   `flag:"url" doc:"send a signed POST to this {URL}"`
	SecretFile   string   `flag:"secret-file" doc:"{FILE} with the secret of the signature: whsec_ and base64"`
	Program      string   `flag:"exec" doc:"run this shell {CMD}, with the notification on its standard input"`
	Signal       string   `flag:"signal" doc:"send a signal of this {NAME}, for which rules begin handoffs"`
	Agents       []string `flag:"agent,,each" doc:"only of this {AGENT}: it has the handoff, gets it or loses it; repeatable"`
	Allow        []string `flag:"allow-net,,each" doc:"permit this network ({CIDR}) although it is not public; repeatable"`
	on           []string
}

func newNotify(a *app) *cobra.Command {
	var flags notifyFlags
	cmd := &cobra.Command{
		Use:   "notify",
		Short: "Send a webhook or a signal, or run a program, at events of handoffs",
		Long: `Notify sends one POST to --url or one signal to --signal, or runs --exec once, for each of
these that happens from its first start on:

  asked      an agent needs context or a permission before it takes a handoff
  approval   a handoff waits for an approval, or for its budget to be raised
  escalated  a handoff was passed up to an authority: an agent, or a person
  closed     a handoff ended, with any outcome
  failed     a handoff ended as failed, timeout or rejected; it is closed, too
  stuck      the supervisors could not deal with a handoff and have stopped trying
  absent     no worker of its agent took a handoff within the acknowledge timeout

The body is JSON: type (handoff.asked), timestamp, and in data the ticket, its agent, a
sentence, and a summary of its state. A program gets it on its standard input, and the
main parts in $HANDOFF_TYPE, $HANDOFF_TICKET, $HANDOFF_SENTENCE and
$HANDOFF_NOTIFICATION, which is the id.

The payload of a signal is flat: kind, timestamp, ticket, agent, sentence, and the fields
of the summary. The handoffs of its rules are in the lineage of that handoff (handoff
signal).

The webhook is signed as Standard Webhooks describes it (headers webhook-id,
webhook-timestamp, webhook-signature). --secret-file has the secret, whsec_ and base64;
with two lines it is signed with both, so that a receiver can change to the other.

A notification is sent at least once, one at a time, always with the same id: ignore an id
that you have had. A status other than 2xx, a redirect, an exit code other than 0, or no
end within 15 s is a failure, and is tried again after 1 s, 2 s, 4 s and so on, up to
5 min, for as long as the ledger has the entry. Meanwhile others are sent.
410 ends the command: the receiver wants no more.

The engine keeps the place: occurrences while notify is away are sent when it is back. A
notify with other values of --url, --exec, --signal, --on or --agent begins anew, with those from
then on. Two with the same values share the work. It prints "ready" and the name of its
consumer on stdout.

Addresses that are private, loopback or link-local are refused once the name is resolved;
--allow-net permits a network. No proxy is used.

` + waitHelp + `

` + metricsHelp + `

Exit codes: 0 stopped with Ctrl-C; 1 the receiver answered 410; 6 the engine is not
reachable; 9 the URL or the secret is refused.`,
		Example: `  handoff notify --exec 'notify-send "$HANDOFF_TYPE" "$HANDOFF_SENTENCE"'
  handoff notify --on failed --exec ./page-me.sh
  printf 'whsec_%s\n' "$(head -c 32 /dev/urandom | base64)" > secret
  handoff notify --on closed --agent reviewer --signal reviewed
  handoff notify --url https://example.org/hooks --secret-file secret --on asked,approval
  handoff notify --url http://127.0.0.1:8080/ --secret-file secret --allow-net 127.0.0.0/8`,
		Args: takes(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			n, err := a.notifier(&flags)
			if err != nil {
				return err
			}
			ctx := cmd.Context()
			return a.serve(ctx, &flags.serviceFlags, func(b *broker.Broker, log *slog.Logger, shown *showing) error {
				shown.engineAnswers(b)
				n.Ledger, n.Broker, n.Log = a.engine, b, log
				if signal, is := n.To.(*notify.Signal); is {
					signal.Broker = b
				}
				log.Info("notifying", "engine", a.conn.resolve(a.env).where(), "consumer", n.Name(), "on", n.On)
				var printed error
				err := n.Run(ctx, func() {
					shown.started()
					printed = a.ready(n.Name(), shown.url(), "")
				})
				if ctx.Err() != nil {
					err = nil
				}
				return errors.Join(err, printed)
			})
		},
	}
	bind(cmd.Flags(), &flags)
	cmd.Flags().StringSliceVar(&flags.on, "on", []string{"asked", "approval", "escalated", "failed", "stuck"}, "the occurrences, comma-separated")
	return cmd
}

// notifier returns the notifier that the flags describe, without an engine.
func (a *app) notifier(flags *notifyFlags) (*notify.Notifier, error) {
	n := &notify.Notifier{Target: flags.URL + flags.Program, Agents: flags.Agents}
	if flags.Signal != "" {
		n.Target = "signal " + flags.Signal
	}
	for _, word := range flags.on {
		if !slices.Contains(notify.Kinds, notify.Kind(word)) {
			return nil, usagef("--on %s: must be of %s", word, notify.Kinds)
		}
		n.On = append(n.On, notify.Kind(word))
	}
	for _, agent := range flags.Agents {
		if err := protocol.CheckID("agent", agent); err != nil {
			return nil, err
		}
	}
	var allowed []netip.Prefix
	for _, text := range flags.Allow {
		network, err := netip.ParsePrefix(text)
		if err != nil {
			return nil, usagef("--allow-net %s: a network, such as 10.0.0.0/8 or fd00::/8", text)
		}
		allowed = append(allowed, network)
	}
	given := slices.DeleteFunc([]string{flags.URL, flags.Program, flags.Signal}, func(s string) bool { return s == "" })
	switch {
	case len(given) != 1:
		return nil, usagef("notify needs one of --url URL, --exec CMD and --signal NAME")
	case flags.Signal != "":
		n.To = &notify.Signal{Name: flags.Signal}
		return n, protocol.CheckID("signal", flags.Signal)
	case flags.Program != "":
		n.To = &notify.Program{Line: flags.Program, Dir: a.dir, Stdout: a.out, Stderr: a.err,
			Env: append(os.Environ(), a.connEnv("", []string{worker.InheritAll})...)}
		return n, nil
	case flags.SecretFile == "":
		return nil, usagef("--url needs --secret-file FILE: the receiver checks the signature")
	}
	secrets, err := a.readFile(flags.SecretFile)
	if err != nil {
		return nil, err
	}
	n.To, err = notify.NewWebhook(flags.URL, string(secrets), allowed)
	return n, err
}

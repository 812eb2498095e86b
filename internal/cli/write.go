package cli

import (
	"cmp"
	"encoding/json"
	"runtime"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/agenthandoff/handoff/internal/schema"
	"github.com/agenthandoff/handoff/protocol"
)

// schemas are the things on the wire that people may write by hand.
var schemas = map[string]func() []byte{
	"package": schema.Package,
	"result":  schema.Result,
	"ack":     schema.Ack,
	"answer":  schema.Answer,
	"profile": schema.Profile,
}

var schemaNames = []string{"package", "result", "ack", "answer", "profile"}

func newSchema(a *app) *cobra.Command {
	return &cobra.Command{
		Use:       "schema [" + strings.Join(schemaNames, "|") + "]",
		Short:     "Print the JSON Schema of a package, result, answer or ack",
		Example:   `  handoff schema package > package.schema.json`,
		ValidArgs: schemaNames,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 1 || len(args) == 1 && !slices.Contains(schemaNames, args[0]) {
				return usagef("there are schemas of %s; %q is none of them", strings.Join(schemaNames, ", "), args[len(args)-1])
			}
			return nil
		},
		RunE: func(_ *cobra.Command, args []string) error {
			name := "package"
			if len(args) == 1 {
				name = args[0]
			}
			body := append(schemas[name](), '\n')
			if a.format == formatJSONL {
				return a.value(json.RawMessage(body)) // which becomes one line
			}
			_, err := a.out.Write(body)
			return err
		},
	}
}

// validView is a package that is good, for programs.
type validView struct {
	Valid    bool   `json:"valid"`
	Source   string `json:"source"`
	Target   string `json:"target"`
	Bytes    int    `json:"bytes"`
	Redacted int    `json:"redacted"`
}

func newValidate(a *app) *cobra.Command {
	var file string
	cmd := &cobra.Command{
		Use:   "validate -f FILE|-",
		Short: "Check a package without an engine",
		Long: `Validate checks a package as submit would, without an engine: everything but whether
the target exists (submit --dry-run checks that too). A package without a source has
$HANDOFF_AGENT for one, else human, as for submit.

Exit codes: 0 the package is good; 9 it is refused, and the message has the reason.`,
		Example: `  handoff validate -f package.json
  generate-package | handoff validate -f -`,
		Args: takes(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if file == "" {
				return usagef("validate needs -f FILE, or -f - for stdin")
			}
			pkg, err := readAs(a, file, protocol.DecodePackage)
			if err != nil {
				return err
			}
			pkg.Source = cmp.Or(pkg.Source, a.me())
			prepared, err := a.prepare(cmd.Context(), pkg)
			if err != nil {
				return err
			}
			v := validView{true, pkg.Source, pkg.Target.String(), len(prepared.Body), prepared.Redacted}
			return a.line(v, "valid: %s -> %s, %s, %d secrets to take out\n", v.Source, v.Target, protocol.Size(int64(v.Bytes)), v.Redacted)
		},
	}
	cmd.Flags().StringVarP(&file, "file", "f", "", "the package, or stdin with -")
	return cmd
}

func newVersion(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version of the program and of the protocol",
		Args:  takes(),
		RunE: func(_ *cobra.Command, _ []string) error {
			v := map[string]string{"program": programVersion(), "protocol": protocol.Version, "go": runtime.Version()}
			return a.line(v, "handoff %s, protocol %s, %s\n", v["program"], v["protocol"], v["go"])
		},
	}
}

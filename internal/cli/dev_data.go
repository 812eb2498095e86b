package cli

import (
	"fmt"
	"path/filepath"

	"github.com/spf13/pflag"

	"github.com/agenthandoff/handoff/broker/jetstream"
)

func verboseFlag(fs *pflag.FlagSet, verbose *bool) {
	fs.BoolVarP(verbose, "verbose", "v", false, "log every append as well")
}

// dataDir is where dev keeps its ledger without --data.
func (a *app) dataDir() (string, error) {
	home, err := a.dataHome("data")
	return filepath.Join(home, "dev"), err
}

// dataHome is the XDG base directory for data. flag names the flag that gives another place.
func (a *app) dataHome(flag string) (string, error) {
	base := a.env("XDG_DATA_HOME")
	if !filepath.IsAbs(base) { // the specification says to ignore others
		home, err := a.home()
		if err != nil {
			return "", fmt.Errorf("%w; say where the data shall be, with --%s", err, flag)
		}
		base = filepath.Join(home, ".local", "share")
	}
	return filepath.Join(base, "handoff"), nil
}

// ready says on stdout that dev serves, and where.
func (a *app) ready(engine, metrics string) error {
	where := map[string]string{"ready": engine}
	if metrics != "" {
		where["metrics"] = metrics
		if a.text() {
			a.printf("metrics %s\n", metrics)
		}
	}
	return a.line(where, "ready %s\n", engine)
}

// nextToType says to people what to type next, and how other commands find an engine that is
// not where they look.
func (a *app) nextToType(engine string) {
	if !a.text() {
		return
	}
	export := ""
	if engine != jetstream.DefaultURL {
		export = "export NATS_URL=" + engine + "; "
	}
	a.notef("handoff: next, in another terminal: %shandoff work --agent NAME -- CMD (handoff example prints a program for CMD)\n", export)
}

// Command peers measures what others make of the work that `handoff bench`
// measures Handoff with: Asynq on Redis, River on PostgreSQL, and Temporal. It is
// a module of its own, so that what they need is never what Handoff needs.
//
// For Asynq and River it expects a server that is running, empty and its own;
// Temporal's server runs in this process. The script run beside it starts them, and
// says what is measured and with which settings. It prints one JSON object in the
// form that `handoff bench -o json` has.
//
// Temporal takes minutes to compile, so it is only in a build with the tag temporal.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"syscall"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "peers:", err)
		os.Exit(1)
	}
}

const usage = `usage: peers asynq|river|temporal [flags]
       peers table DIR

Measures one system and prints one JSON object. The server of asynq and river must
be running, empty and its own; temporal brings its own, and is there only if the
program was built with -tags temporal. peers SYSTEM -h names the flags. peers table
prints the measurements that the script run has left in a directory.
`

// An opener starts a system with its workers.
type opener func(context.Context, *bench) (system, error)

// systems are what can be measured: each registers its flags, and is opened when they
// are read. Temporal is among them in a build with the tag temporal.
var systems = map[string]func(*flag.FlagSet) opener{
	"asynq": func(flags *flag.FlagSet) opener {
		var cfg asynqConfig
		cfg.register(flags)
		return func(ctx context.Context, b *bench) (system, error) { return openAsynq(ctx, b, cfg) }
	},
	"river": func(flags *flag.FlagSet) opener {
		var cfg riverConfig
		cfg.register(flags)
		return func(ctx context.Context, b *bench) (system, error) { return openRiver(ctx, b, cfg) }
	},
}

func run(ctx context.Context, args []string) error {
	if len(args) == 0 || strings.HasPrefix(args[0], "-") {
		fmt.Fprint(os.Stderr, usage)
		return flag.ErrHelp
	}
	if args[0] == "table" && len(args) == 2 {
		return printTable(os.Stdout, args[1])
	}
	var cfg config
	flags := flag.NewFlagSet("peers "+args[0], flag.ExitOnError)
	cfg.register(flags)

	register, known := systems[args[0]]
	if !known {
		return fmt.Errorf("no system is called %q: there are %s", args[0], strings.Join(slices.Sorted(maps.Keys(systems)), ", "))
	}
	open := register(flags)
	if err := flags.Parse(args[1:]); err != nil {
		return err
	}
	if err := cfg.validate(); err != nil {
		return err
	}
	cfg.Flags = map[string]string{}
	flags.VisitAll(func(f *flag.Flag) { cfg.Flags[f.Name] = f.Value.String() })

	result, err := measure(ctx, args[0], cfg, open)
	if err != nil {
		return err
	}
	out := json.NewEncoder(os.Stdout)
	out.SetIndent("", "  ")
	return out.Encode(result)
}

// pids is a list of process ids with commas between, as a flag.
type pids []int

func (p *pids) String() string {
	words := make([]string, len(*p))
	for i, pid := range *p {
		words[i] = strconv.Itoa(pid)
	}
	return strings.Join(words, ",")
}

func (p *pids) Set(list string) error {
	for word := range strings.SplitSeq(list, ",") {
		pid, err := strconv.Atoi(word)
		if err != nil {
			return err
		}
		*p = append(*p, pid)
	}
	return nil
}

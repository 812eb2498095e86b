// Command peers measures what others make of the work that `handoff bench`
// measures Handoff with: Asynq on Redis and River on PostgreSQL. It is a module
// of its own, so that what they need is never what Handoff needs.
//
// It expects a server that is running, empty and its own; the script run beside
// it starts both, and says what is measured and with which settings. It prints
// one JSON object in the form that `handoff bench -o json` has.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/signal"
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

const usage = `usage: peers asynq|river [flags]
       peers table DIR

Measures one system, whose server must be running, empty and its own, and prints
one JSON object. peers asynq -h and peers river -h name the flags. peers table
prints the measurements that the script run has left in a directory.
`

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

	var open func(context.Context, *bench) (system, error)
	switch args[0] {
	case "asynq":
		var of asynqConfig
		of.register(flags)
		open = func(ctx context.Context, b *bench) (system, error) { return openAsynq(ctx, b, of) }
	case "river":
		var of riverConfig
		of.register(flags)
		open = func(ctx context.Context, b *bench) (system, error) { return openRiver(ctx, b, of) }
	default:
		return fmt.Errorf("no system is called %q: asynq and river are", args[0])
	}
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

// Command agent is an example program for "handoff work". It gets a package on its standard input,
// prints a result on its standard output, and knows nothing else of Handoff. It counts the words of
// its task. Put yours in its place:
// docs/operations/containers.md.
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"hash/fnv"
	"os"
	"strings"
	"time"
)

func main() {
	takes := flag.Duration("takes", 0, "how long the longest work takes; others take less")
	next := flag.String("next", "", "the `AGENT` to hand off to")
	flag.Parse()
	if err := work(*takes, *next); err != nil {
		// Standard error goes to the worker's log; an exit code of 1 is worth another try.
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func work(takes time.Duration, next string) error {
	var pkg struct {
		Task struct {
			Description string `json:"description"`
		} `json:"task"`
	}
	if err := json.NewDecoder(os.Stdin).Decode(&pkg); err != nil {
		return fmt.Errorf("read the package: %w", err)
	}
	if takes > 0 {
		// As long for a ticket and an attempt as the last time: a test can be repeated.
		sum := fnv.New32a()
		_, _ = fmt.Fprint(sum, os.Getenv("HANDOFF_TICKET"), os.Getenv("HANDOFF_ATTEMPT"))
		time.Sleep(takes * time.Duration(sum.Sum32()%1000) / 1000)
	}
	host, err := os.Hostname()
	if err != nil {
		return err
	}
	result := map[string]any{"body": map[string]any{"words": len(strings.Fields(pkg.Task.Description)), "by": host}}
	if next != "" {
		result["command"] = map[string]any{"goto": next}
	}
	return json.NewEncoder(os.Stdout).Encode(result)
}

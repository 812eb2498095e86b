// Command handoff moves work between agents: it submits, claims, answers and
// follows handoffs, runs workers, and starts an engine. Its commands are in
// package internal/cli.
package main

import "github.com/agenthandoff/handoff/internal/cli"

func main() { cli.Main() }

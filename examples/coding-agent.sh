#!/bin/sh
# Runs a coding agent once for each handoff, unattended: the brief is its prompt, its report the
# result. The worker reads the report, also one with a hand-off in its text, or of a failure.
#
#   handoff work --agent coder --env 'ANTHROPIC_*,OPENAI_*,CODING_AGENT' -- sh examples/coding-agent.sh
#
# CODING_AGENT is claude (default) or codex, which must be on the path and signed in. Give the worker
# a directory of its own: the agent may change files there without a question.
set -eu
prompt=${HANDOFF_BRIEF_FILE:-/dev/stdin}
case ${CODING_AGENT:-claude} in
claude) exec claude -p --output-format json --permission-mode acceptEdits <"$prompt" ;;
codex) exec codex exec --full-auto - <"$prompt" ;;
*)
  echo "CODING_AGENT is claude or codex" >&2
  exit 64
  ;;
esac

#!/bin/sh
# Runs six agents that make release notes of a list of changes, on an engine of their own.
#
#   sh examples/fleet/run.sh            you approve the publication
#   sh examples/fleet/run.sh --yes      the script approves it
#   sh examples/fleet/run.sh FILE       the changes are those in FILE
#
# It needs handoff, jq and python3 on the path. FLEET_OUT is where the notes go (default:
# release-notes.md here). HANDOFF_LLM_URL has a model write them, CODING_AGENT a coding agent: see model.py.
set -eu

yes=
if [ "${1:-}" = --yes ]; then
  yes=1
  shift
fi
fleet=$(cd "$(dirname "$0")" && pwd)
changes=$(realpath "${1:-$fleet/changes.txt}")
FLEET_OUT=$(realpath -m "${FLEET_OUT:-release-notes.md}")
export FLEET_OUT
for need in handoff jq python3; do
  command -v "$need" >/dev/null || { echo "run.sh needs $need on the path" >&2; exit 1; }
done

dir=$(mktemp -d)
pids=
cleanup() {
  # shellcheck disable=SC2086 # one id each
  kill $pids 2>/dev/null || true
  wait
  rm -rf "$dir"
}
trap cleanup EXIT
trap 'exit 130' INT TERM

# The engine of this run alone.
handoff dev --port 0 --data "$dir/data" >"$dir/ready" 2>"$dir/engine.log" &
pids=$!
until NATS_URL=$(sed -n 's/^ready //p' "$dir/ready") && [ -n "$NATS_URL" ]; do
  kill -0 "$pids" 2>/dev/null || { cat "$dir/engine.log" >&2; exit 1; }
  sleep 0.1
done
export NATS_URL

# What each agent is, for those that look for one. A publication is approved by a person first.
agent() { handoff agents put "$@" >/dev/null; }
agent desk --description "takes in a request for release notes" --capability intake
agent historian --description "reads lists of changes and sorts them by kind" \
  --example "read a list of changes and sort it by kind"
agent writer --description "writes release notes" --capability writing
agent reviewer --description "checks notes and gives them a score" --capability review
agent publisher --description "puts notes in place" --capability publish --approve always
agent announcer --description "says in one line what is new" --capability announce

serve() {
  name=$1
  shift
  handoff work --agent "$name" --env 'HANDOFF_LLM_*,CODING_AGENT,ANTHROPIC_*,OPENAI_*,FLEET_OUT' -- "$@" 2>"$dir/$name.log" &
  pids="$pids $!"
}
serve desk sh "$fleet/desk.sh"
serve historian python3 "$fleet/historian.py"
serve writer python3 "$fleet/writer.py"
serve reviewer sh "$fleet/reviewer.sh"
serve publisher sh "$fleet/publisher.sh"
serve announcer python3 "$fleet/announcer.py"

# The rules say who goes on, and the limits bound all of it. Notes that still score low after two
# more drafts go on to the publisher: the person who approves sees them.
T=$(handoff submit --for "a request for release notes" --reason "a release is due" \
  --task "write the release notes" --criterion "every change is named once" --artifact "changes=$changes" \
  --next 'historian: -> writer' \
  --next 'writer: -> reviewer' \
  --next 'reviewer: quality_score < 80 -> writer x2' \
  --next 'reviewer: -> publisher' \
  --next 'publisher: -> announcer' \
  --risk high --max-handoffs 9 --max-tokens 20000 --deadline 1h)
echo "ticket $T on $NATS_URL"

# The publisher's handoff waits for a person. A chain that ends before has nothing to approve.
asked=
while [ -z "$asked" ]; do
  asked=$(handoff inbox -o json | jq -r 'first(.[] | select(.why == "approval")).ticket // empty')
  handoff wait "$T" --chain --timeout 1s >/dev/null 2>&1 && break
  [ $? = 4 ] || break
done
if [ -n "$asked" ]; then
  handoff why "$asked"
  handoff show "$asked" -o json | jq -r .package.context.variables.notes
  if [ -n "$yes" ]; then
    answer=y
  else
    printf 'Publish these notes to %s? [y/N] ' "$FLEET_OUT"
    read -r answer || answer=
  fi
  case "$answer" in
  y | Y | yes) handoff approve "$asked" ;;
  *) handoff deny "$asked" --reason "not these notes" ;;
  esac
fi

code=0
handoff wait "$T" --chain || code=$?
handoff result "$T" --chain || true
handoff tree "$T"
handoff show "$T" --budget
exit "$code"

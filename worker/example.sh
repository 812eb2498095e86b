#!/bin/sh
# An agent for handoff. Start it with:  handoff work --agent NAME -- ./agent.sh
# It is run once for each handoff, with the package as JSON on its standard input.

package=$(cat)

# With jq you get at the fields; without it, use the text as it is.
if command -v jq >/dev/null 2>&1; then
	description=$(printf '%s' "$package" | jq -r '.task.description')
	language=$(printf '%s' "$package" | jq -r '.context.variables.language // empty')
else
	description=$(printf '%s' "$package" | tr -d '\n' | sed -n 's/.*"description": *"\([^"]*\)".*/\1/p')
	language=
fi

# What you write to standard error goes to the worker's log.
echo "attempt $HANDOFF_ATTEMPT: $description" >&2

# Not for you? Say so, and it goes to somebody else:
#   echo "rejected: I do not read German" > "$HANDOFF_ACK_FILE"; exit 69
# or, as JSON ("handoff schema ack"), to whom you name:
#   echo '{"status":"rejected","reason":"it is German","suggested_alternative":"anna"}' > "$HANDOFF_ACK_FILE"; exit 69
# Something missing? Ask. You are run again with the answer in context.variables
# and in supplements:
#   if [ -z "$language" ]; then
#     echo "conditional: which language?" > "$HANDOFF_ACK_FILE"; exit 77
#   fi
# Too much for you? Ask whoever is above you; or roll it back to its source:
#   echo "escalated: two ways, and both break the build" > "$HANDOFF_ACK_FILE"; exit 1
#   echo "returned: the branch is gone" > "$HANDOFF_ACK_FILE"; exit 1
# To hand off to others print a command with the result:
#   echo '{"body":"done","command":{"goto":"tester","update":{"next_task":"test it"}}}'; exit 0
# Other exit codes:  65 failed for good, 75 retry later, 127 I cannot run here
# (the worker stops), anything else failed and worth a retry.

# The work goes here. What you write to standard output is the result: text, or JSON.
printf 'Done (%s%s): %s\n' "$HANDOFF_AGENT" "${language:+, $language}" "$description"

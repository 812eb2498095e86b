#!/bin/sh
# The agent desk: it finds by words who can begin, and hands on to that agent.
set -eu
task=$(jq -r .task.description)
first=$(handoff agents find "read a list of changes and sort it by kind" -o json | jq -r '.found[0].agent')
jq -n --arg first "$first" --arg task "$task" '{
  body: ("\($first) begins with: " + $task),
  command: {goto: $first}
}'

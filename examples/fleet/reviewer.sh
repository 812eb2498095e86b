#!/bin/sh
# The agent reviewer: it gives the notes a score. The rules of the package say what follows from it.
set -eu
jq '.context.variables.notes as $notes
  | [ if $notes | contains("\n## ") then empty else "a heading for each kind of change" end
    , if $notes | startswith("# ") then empty else "a title" end ] as $remarks
  | (100 - 30 * ($remarks | length)) as $score
  | { body: (if $remarks == [] then "nothing is missing" else "missing: " + ($remarks | join(", ")) end)
    , variables: {quality_score: $score, remarks: $remarks} }'

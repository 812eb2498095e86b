"""The agent historian: it sorts the lines of a list of changes by their kind."""

import json
import sys

package = json.load(sys.stdin)
path = next(a["path"] for a in package["context"]["artifacts"] if a["name"] == "changes")
kinds = {}
with open(path, encoding="utf-8") as lines:
    for line in lines:
        kind, colon, words = line.partition(":")
        if colon:
            kinds.setdefault(kind.strip(), []).append(words.strip())
counts = ", ".join(f"{len(kinds[k])} {k}" for k in sorted(kinds))
print(json.dumps({"body": counts or "no changes", "variables": {"changes": kinds}}))

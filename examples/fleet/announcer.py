"""The agent announcer: it says in one line what is new. It is the last one of the chain."""

import json
import sys

variables = json.load(sys.stdin)["context"]["variables"]
counts = {kind: len(words) for kind, words in variables["changes"].items()}
line = f"{sum(counts.values())} changes are out, {counts.get('breaking', 0)} of them breaking"
print(json.dumps({"body": f"{line} (draft {variables['draft']})"}))

"""The agent writer: it writes notes of the sorted changes, with a model where there is one.

Without HANDOFF_LLM_URL the first draft is a plain list, and a later one heeds the remarks of the
reviewer. The brief that a model reads has the same things in it.
"""

import json
import os
import sys

import model

package = json.load(sys.stdin)
variables = package["context"]["variables"]
remarks = variables.get("remarks", [])
draft = variables.get("draft", 0) + 1
titles = {"breaking": "Breaking changes", "feature": "New", "fix": "Fixed", "docs": "Documentation"}


def plain():
    """Returns notes that are made by a rule: headings only once the reviewer asked for them."""
    lines = ["# Release notes", ""]
    for kind in sorted(variables["changes"], key=lambda k: (list(titles) + [k]).index(k)):
        if remarks:
            lines += ["## " + titles.get(kind, kind.capitalize()), ""]
        lines += ["- " + words for words in variables["changes"][kind]]
        if remarks:
            lines.append("")
    return "\n".join(lines).strip() + "\n"


if model.configured():
    with open(os.environ["HANDOFF_BRIEF_FILE"], encoding="utf-8") as brief:
        notes = model.ask(
            brief.read()
            + "\n\nWrite the release notes in Markdown: the title '# Release notes', then a heading"
            + " for each kind of change, the breaking ones first. Print the notes alone.\n"
        )
else:
    notes = plain()
print(json.dumps({"body": notes, "variables": {"notes": notes, "draft": draft}}))

"""A client for a model behind an OpenAI-compatible endpoint, with the standard library alone, or for
a coding agent on the path (CODING_AGENT: see ../coding-agent.sh).

HANDOFF_LLM_URL is the address in front of /chat/completions, HANDOFF_LLM_MODEL the name of the
model. The key is in the file HANDOFF_LLM_KEY_FILE, or in HANDOFF_LLM_KEY; it is never printed.
"""

import json
import os
import pathlib
import subprocess
import sys
import urllib.error
import urllib.request

TIMEOUT = 60  # seconds
RETRY_LATER = 75  # the exit code for "failed, and worth another attempt"


def configured():
    """Tells whether there is a model to ask."""
    return bool(os.environ.get("HANDOFF_LLM_URL") or os.environ.get("CODING_AGENT"))


def ask(text):
    """Returns the answer of the model to text, and reports what it used to the worker.

    Where the model does not answer, or not with an answer, the program ends so that Handoff
    repeats the attempt.
    """
    if os.environ.get("CODING_AGENT"):
        return run(text)
    request = urllib.request.Request(
        os.environ["HANDOFF_LLM_URL"].rstrip("/") + "/chat/completions",
        data=json.dumps(
            {
                "model": os.environ.get("HANDOFF_LLM_MODEL", "default"),
                "temperature": 0,
                "messages": [{"role": "user", "content": text}],
            }
        ).encode(),
        headers={"Content-Type": "application/json", **authorization()},
    )
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT) as response:
            answer = json.load(response)
        words = answer["choices"][0]["message"]["content"]
    except urllib.error.HTTPError as failure:
        again(f"the model answers {failure.code}", failure.headers.get("Retry-After"))
    except (OSError, ValueError, LookupError, TypeError) as failure:
        again(f"no answer of the model: {type(failure).__name__}")
    if not isinstance(words, str) or not words.strip():
        again("the model has no words")
    report(answer.get("usage"))
    return words.strip() + "\n"


def run(text):
    """Returns the report of a coding agent on text."""
    script = pathlib.Path(__file__).parent.parent / "coding-agent.sh"
    env = {name: value for name, value in os.environ.items() if name != "HANDOFF_BRIEF_FILE"}
    ended = subprocess.run(["sh", script], input=text, env=env, capture_output=True, text=True, check=False)
    if ended.returncode:
        again(f"the coding agent ended with {ended.returncode}: {ended.stderr[-500:]}")
    try:
        words = json.loads(ended.stdout)["result"]
    except (ValueError, LookupError, TypeError):
        words = ended.stdout
    return words.strip() + "\n"


def authorization():
    path = os.environ.get("HANDOFF_LLM_KEY_FILE")
    if path:
        with open(path, encoding="utf-8") as file:
            key = file.read().strip()
    else:
        key = os.environ.get("HANDOFF_LLM_KEY", "")
    return {"Authorization": "Bearer " + key} if key else {}


def report(usage):
    """Tells the worker what has been used: it counts against the limits of the handoff."""
    if usage:
        with open(os.environ["HANDOFF_USAGE_FILE"], "a", encoding="utf-8") as file:
            file.write(json.dumps(usage) + "\n")


def again(why, seconds=None):
    """Ends the program so that the attempt is repeated, not before seconds have passed."""
    seconds = int(seconds) if seconds and seconds.isdigit() else 2
    with open(os.environ["HANDOFF_ACK_FILE"], "w", encoding="utf-8") as file:
        file.write(json.dumps({"retry_after_ms": seconds * 1000}))
    print(why, file=sys.stderr)
    sys.exit(RETRY_LATER)

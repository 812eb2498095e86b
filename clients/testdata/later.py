"""The later source of clients_test.go: one handoff that is not offered yet, and one that is offered at its start."""
import sys
from datetime import datetime, timedelta, timezone
from handoff import Client, Json


def instant(state: dict[str, Json], name: str) -> datetime:
    return datetime.fromisoformat(state[name].replace("Z", "+00:00"))


with Client(patience=120) as client:
    now = datetime.now(timezone(timedelta(hours=2)))
    far, soon = now + timedelta(hours=1), now + timedelta(seconds=3)
    waits = client.submit(to=sys.argv[1], task="plain", at=far)
    status = waits.status()
    state = status["state"]
    assert state["phase"] == "awaiting_approval" and status["waiting_for"].startswith("its start, at ") and not state.get("offer"), status
    assert abs(instant(state, "start_at") - far) < timedelta(milliseconds=1), (state, far)
    ticket = client.submit(to=sys.argv[1], task="plain", at=soon)
    ticket.result(timeout=120)
    state = ticket.status()["state"]
    assert instant(state, "accepted_at") >= instant(state, "start_at"), state
    status = waits.status()
    assert status["waiting_for"].startswith("its start, at "), status
    waits.cancel("not needed")
    print(waits.wait(timeout=120)["state"]["outcome"])

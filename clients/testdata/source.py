"""The source of clients_test.go: hands n tasks to an agent, four at a time, and prints the body of each end."""
import json, sys
from concurrent.futures import ThreadPoolExecutor
from handoff import Client


def one(n: int) -> None:
    ticket = client.submit(to=sys.argv[1], task=f"task {n}", key=f"{sys.argv[1]}-{n}")
    seen = [event.seq for event in ticket.watch()]
    assert seen == sorted(set(seen)), seen
    print(json.dumps({"ticket": ticket.id, "body": ticket.result(timeout=120).body}), flush=True)


with Client(patience=120) as client, ThreadPoolExecutor(4) as pool:
    list(pool.map(one, range(int(sys.argv[2]))))

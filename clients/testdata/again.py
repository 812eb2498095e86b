"""The again source of clients_test.go: a schedule that is run, paused, resumed and removed, and a signal that is sent twice."""
import sys
from handoff import Client, HandoffError

with Client(patience=120) as client:
    nightly = client.every("nightly", "0 3 * * *", zone="Europe/Berlin", missed="all", to=sys.argv[1], task="plain", variables={"depth": 2})
    status = nightly.status()
    assert len(status["next"]) == 3 and status["package"]["context"]["variables"] == {"depth": 2}, status
    assert [s["name"] for s in client.schedules()] == ["nightly"]
    assert nightly.pause()["next"] == [] and len(client.schedule("nightly").resume()["next"]) == 3
    result = nightly.run().result(timeout=120)
    assert result.status == "success", result
    nightly.remove()
    try:
        nightly.run()
    except HandoffError as err:
        assert err.code == "not_found", err
    else:
        sys.exit("a removed schedule ran")
    assert client.signal("order", {"text": "plain"}, id="order-7") == "order-7"
    assert client.signal("order", {"text": "plain"}, id="order-7") == "order-7"
    print(client.signal("nothing") != "")

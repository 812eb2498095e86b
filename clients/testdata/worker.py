"""The worker of clients_test.go: the task names what to do."""
import asyncio, os, sys, time
from handoff import Agent, Cancelled, Escalate, Handoff, NeedsContext, NeedsPermission, Permanent, Reject, Result, RetryLater, Throttled

agent = Agent(sys.argv[1], capabilities=["echo"], slots=4, lease=float(os.environ.get("LEASE", "30")), drain=20)


def note(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


@agent.work
async def work(h: Handoff) -> object:
    if h.task == "ask" and "branch" not in h.variables:
        raise NeedsContext("which branch?")
    if h.task == "permit" and not h.answers:
        raise NeedsPermission("to push")
    if h.task == "reject":
        raise Reject("not I", suggest="another")
    if h.task == "later" and not any("deferred" in str(t) or "retry" in str(t) for t in h.trail) and not os.path.exists("later"):
        open("later", "w").close()
        raise RetryLater(0.2, "busy")
    if h.task in ("429", "429 of another") and h.attempt == 1:
        raise Throttled(0.2, "test" if h.task == "429" else "another")
    if h.task == "escalate":
        raise Escalate("a person decides")
    if h.task == "permanent":
        raise Permanent("broken")
    if h.task == "once" and h.attempt == 1:
        raise ValueError("the first attempt fails")
    if h.task == "die" and h.attempt == 1:
        os._exit(3)
    if h.task.startswith("task"):
        await h.progress(50, "half of it")
    if h.task == "next":
        return Result("half", goto="another")
    if h.task == "review":
        if h.attempt == 1:
            note("begun review")
            await asyncio.sleep(600)
        return Result({"reviewed": h.previous["body"] if h.previous else None}, goto="finisher")
    if h.task in ("long", "drain"):
        note(f"begun {h.task}")
        try:
            await h.progress(40, "reading")
            await asyncio.sleep(1 if h.task == "drain" else 600)
        except asyncio.CancelledError:
            note(f"cancelled {h.why}")
            raise
    return {"echo": h.task, "variables": h.variables, "answers": len(h.answers), "attempt": h.attempt, "token": os.environ.get("HANDOFF_TOKEN"),
            "brief": h.brief[:8]}


agent.run()
note("drained")

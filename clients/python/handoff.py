"""Hand work from agent to agent with Handoff, over HTTP. Python 3.10 or later, nothing else.

A worker serves an agent:                      A source hands work to one:

    agent = Agent("reviewer", slots=4)             with Client() as client:
                                                       ticket = client.submit(to="reviewer", task="the login form")
    @agent.work                                        for event in ticket.watch():
    async def review(h: Handoff) -> str:                   print(event.sentence)
        return f"reviewed: {h.task}"                   print(ticket.result(timeout=600).body)

    agent.run()

HANDOFF_URL and HANDOFF_TOKEN name the gateway: eval "$(handoff dev env)". "handoff work --stay" needs neither.
"""

from __future__ import annotations

import asyncio, contextlib, http.client, inspect, json, logging, os, random, signal, sys, threading, time, uuid
from concurrent.futures import Future, ThreadPoolExecutor
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any, TypeVar, cast
from urllib.parse import urlencode, urlsplit

T = TypeVar("T")
Json = Any  # a value of JSON
log = logging.getLogger("handoff")
WAIT = 20.0  # the longest wait of one request, seconds
FAULTS = (OSError, http.client.HTTPException)  # of a connection; a request may be repeated after one


class HandoffError(Exception):
    """An error of the gateway. code is stable; field names the part of the request at fault; why is in words."""

    def __init__(self, code: str, why: str, field: str = "", status: int = 0, after: float = 0):
        super().__init__(f"{field} {why}".strip())
        self.code, self.why, self.field, self.status, self.after = code, why, field, status, after


class Failed(HandoffError):
    """A handoff, or the last one of its chain, has closed without success. code is its outcome."""


class Cancelled(asyncio.CancelledError):
    """The work is to stop. why: cancelled, returned, lease_lost or shutdown."""

    def __init__(self, why: str):
        super().__init__(why)
        self.why = why


class Permanent(Exception):
    """The work has failed, and no further attempt mends it."""


class _Refusal(Exception):
    def __init__(self, words: str, verb: str = "acknowledge", **report: Json):
        super().__init__(words)
        self.verb, self.report = verb, _given(report)


class Reject(_Refusal):
    """Not for this agent. suggest names one that fits better; code is a token such as capability_mismatch."""

    def __init__(self, reason: str, suggest: str = "", code: str = ""):
        super().__init__(reason, status="rejected", reason=reason, suggested_alternative=suggest, reason_code=code)


class NeedsContext(_Refusal):
    """The source has to answer first. The handoff comes back with the answers in variables and answers."""

    def __init__(self, *needs: str):
        super().__init__("; ".join(needs), status="conditional", needs_context=list(needs))


class NeedsPermission(_Refusal):
    """The source has to permit it first."""

    def __init__(self, *needs: str):
        super().__init__("; ".join(needs), status="conditional", needs_permission=list(needs))


class RetryLater(_Refusal):
    """The handoff is to be offered again, after some seconds."""

    def __init__(self, seconds: float, reason: str):
        super().__init__(reason, status="conditional", reason=reason, retry_after_ms=int(seconds * 1000))


class Throttled(_Refusal):
    """The provider throttles. The attempt has failed, and the next begins no sooner than after some seconds.
    key names a limit of the handoff, such as model:gpt-5: it is paused for all, 10 minutes at most."""

    def __init__(self, seconds: float, key: str = "", reason: str = "the provider throttles"):
        super().__init__(reason, "fail", code="throttled", message=reason, retryable=True, retry_after_ms=int(seconds * 1000), limit_key=key)


class Escalate(_Refusal):
    """The authority above the agent has to decide."""

    def __init__(self, rationale: str, assessment: str = ""):
        super().__init__(rationale, "escalate", rationale=rationale, assessment=assessment)


def _given(fields: dict[str, Json]) -> dict[str, Json]:
    return {name: value for name, value in fields.items() if value not in (None, "", [], {})}


@dataclass
class Result:
    """The end of the work. goto names the next agent, or several; wait_for has {"agent", "task"} objects: the handoff
    comes back with returns when they have ended. more has further fields of a result."""
    body: Json = None
    goto: str | list[Json] | None = None
    summary: str = ""
    variables: dict[str, Json] = field(default_factory=dict)
    update: dict[str, Json] = field(default_factory=dict)
    wait_for: list[Json] = field(default_factory=list)
    usage: dict[str, Json] = field(default_factory=dict)
    status: str = "success"
    more: dict[str, Json] = field(default_factory=dict)

    def _wire(self) -> dict[str, Json]:
        command = _given({"goto": self.goto, "update": self.update, "await": self.wait_for})
        body: dict[str, Json] = {} if self.body is None else {"body": self.body}
        more = {"summary": self.summary, "variables": self.variables, "usage": self.usage, "command": command, **self.more}
        return {"status": self.status, **body, **_given(more)}


def _result(value: Json) -> Result:
    return value if isinstance(value, Result) else Result(value)


@dataclass(frozen=True)
class Event:
    """A change of a handoff. seq grows with each."""
    ticket: str
    seq: int
    at: str
    events: list[str]
    sentence: str
    phase: str
    agent: str
    closed: bool
    outcome: str


class _Http:
    """The gateway. It repeats what may be repeated, for patience seconds."""

    def __init__(self, url: str | None, token: str | None, patience: float):
        base, self.token = url or os.environ.get("HANDOFF_URL", ""), token or os.environ.get("HANDOFF_TOKEN", "")
        if not base or not self.token:
            raise HandoffError("missing", 'HANDOFF_URL and HANDOFF_TOKEN are not both set: eval "$(handoff dev env)"')
        self.url, self.patience, self.stopped = urlsplit(base), patience, False
        self.claiming: http.client.HTTPConnection | None = None

    def open(self, method: str, path: str, body: Json, headers: dict[str, str], claim: bool = False) -> http.client.HTTPResponse:
        """Sends a request. The caller reads the answer, or closes it."""
        make = http.client.HTTPSConnection if self.url.scheme == "https" else http.client.HTTPConnection
        conn = make(self.url.hostname or "", self.url.port, timeout=60)
        self.claiming = conn if claim else self.claiming
        data = None if body is None else json.dumps(body, ensure_ascii=False, allow_nan=False).encode()
        fixed = {"Authorization": f"Bearer {self.token}", "Content-Type": "application/json", "Connection": "close"}
        try:
            conn.request(method, self.url.path.rstrip("/") + path, data, {**fixed, **headers})
            answer: http.client.HTTPResponse = conn.getresponse()
            if answer.status < 300:
                return answer
            text, problem = answer.read(), cast("dict[str, Json]", {})
        except BaseException:
            conn.close()
            raise
        with contextlib.suppress(ValueError):
            problem = json.loads(text)
        raise HandoffError(problem.get("code", "error"), problem.get("detail", f"HTTP status {answer.status}"), problem.get("field", ""),
                           answer.status, float(answer.headers.get("Retry-After") or 0))

    def once(self, method: str, path: str, body: Json, headers: dict[str, str], claim: bool = False) -> Json:
        with self.open(method, path, body, headers, claim) as answer:
            text = answer.read()
        return json.loads(text) if text else None

    def call(self, method: str, path: str, body: Json = None, lease: str = "", key: str = "", patience: float | None = None) -> Json:
        """Makes a request that may be repeated."""
        headers = _given({"Handoff-Lease": lease, "Idempotency-Key": key})
        end, pause = time.monotonic() + (self.patience if patience is None else patience), 0.1
        while True:
            try:
                return self.once(method, path, body, headers)
            except (*FAULTS, HandoffError) as err:
                if not _passes(err) or time.monotonic() > end:
                    raise
                time.sleep(max(getattr(err, "after", 0), pause * random.uniform(0.5, 1)))
                pause = min(pause * 2, 5)

    def stop_claiming(self) -> None:
        """Cuts off the claim that waits. The gateway gives back one that it makes all the same."""
        self.stopped, conn = True, self.claiming
        if conn is not None and conn.sock is not None:
            with contextlib.suppress(OSError):
                conn.sock.shutdown(2)


def _passes(err: BaseException) -> bool:
    return not isinstance(err, HandoffError) or err.status in (429, 502, 503, 504)


class Client:
    """A source of handoffs. Its methods block; it may be used by several threads."""

    def __init__(self, url: str | None = None, token: str | None = None, *, patience: float = 60):
        self._http = _Http(url, token, patience)

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None: ...

    def submit(self, *, to: str | None = None, task: str, reason: str = "asked for", key: str | None = None, capability: str | None = None,
               variables: dict[str, Json] | None = None, at: datetime | None = None, **package: Json) -> Ticket:
        """Hands a task to an agent, or to one with a capability, and offers it then (at, an aware datetime); further arguments are
        fields of the package. The same key is the same handoff. Without one a fresh key lets the request be repeated."""
        body = _package(to, task, reason, capability, variables, package)
        if at:
            body["start_at"] = at.astimezone(timezone.utc).isoformat()
        view = self._http.call("POST", "/v1/handoffs", body, key=key or str(uuid.uuid4()))
        return Ticket(self, view["state"]["ticket"])

    def ticket(self, id: str) -> Ticket:
        return Ticket(self, id)

    def every(self, name: str, cron: str, *, zone: str = "", overlap: str = "", missed: str = "", to: str | None = None, task: str,
              reason: str = "asked for", capability: str | None = None, variables: dict[str, Json] | None = None, **package: Json) -> Schedule:
        """Creates a schedule, or replaces it: it submits the package at the instants of a cron expression in a time zone (UTC).
        overlap is skip, queue or allow; missed is once, all or none."""
        body = _package(to, task, reason, capability, variables, package)
        self.call("POST", "/v1/ops/PutSchedule", _given({"name": name, "cron": cron, "zone": zone, "overlap": overlap, "missed": missed, "package": body}))
        return Schedule(self, name)

    def schedule(self, name: str) -> Schedule:
        return Schedule(self, name)

    def schedules(self) -> list[dict[str, Json]]:
        """Lists the schedules."""
        return cast("list[dict[str, Json]]", self.call("POST", "/v1/ops/Schedules", {}))

    def signal(self, name: str, payload: Json = None, *, id: str = "") -> str:
        """Sends a signal, which begins the handoffs of its rules, and returns its id. The same id begins nothing twice."""
        return str(self._http.call("POST", f"/v1/signals/{name}", payload, key=id or str(uuid.uuid4()))["id"])

    def call(self, method: str, path: str, body: Json = None) -> Json:
        """Makes a request that may be repeated, such as GET /v1/inbox, and returns the JSON of the answer."""
        return self._http.call(method, path, body)


def _package(to: str | None, task: str, reason: str, capability: str | None, variables: dict[str, Json] | None, more: dict[str, Json]) -> dict[str, Json]:
    body: dict[str, Json] = {"reason": reason, **more, "task": {"description": task, **more.get("task", {})}}
    if to or capability:
        body["target"] = _given({"agent": to, "capability": capability})
    if variables:
        body["context"] = {**more.get("context", {}), "variables": variables}
    return body


class Schedule:
    """A schedule."""

    def __init__(self, client: Client, name: str):
        self.name, self._client = name, client

    def _do(self, operation: str, patience: float | None = None) -> dict[str, Json]:
        return cast("dict[str, Json]", self._client._http.call("POST", f"/v1/ops/{operation}", {"name": self.name}, patience=patience))

    def status(self) -> dict[str, Json]:
        """Returns cron, zone, package, the next instants, last (at and ticket), and the counts."""
        return self._do("Schedule")

    def pause(self) -> dict[str, Json]:
        return self._do("PauseSchedule")

    def resume(self) -> dict[str, Json]:
        return self._do("ResumeSchedule")

    def remove(self) -> dict[str, Json]:
        return self._do("RemoveSchedule")

    def run(self) -> Ticket:
        """Submits the package now. It is not sent again if its answer is lost."""
        return Ticket(self._client, self._do("RunSchedule", 0)["ticket"])


class Ticket:
    """A handoff that was submitted."""

    def __init__(self, client: Client, id: str):
        self.id, self._http, self._path = id, client._http, f"/v1/handoffs/{id}"

    def status(self, *, until: str = "closed", wait: float = 0, chain: bool = True) -> dict[str, Json]:
        """Returns state, sentence, waiting_for and ready, after at most wait seconds (20). until is closed, ended, accepted or asked."""
        query = {"until": until, "wait_ms": int(min(wait, WAIT) * 1000), **({"chain": 1} if chain else {})}
        return cast("dict[str, Json]", self._http.call("GET", f"{self._path}?{urlencode(query)}"))

    def wait(self, *, until: str = "closed", timeout: float | None = None, chain: bool = True) -> dict[str, Json]:
        """Blocks until the handoff, or the last one of its chain, is closed, ended, accepted or asked; or raises TimeoutError."""
        end = time.monotonic() + (timeout if timeout is not None else 1e9)
        while True:
            status = self.status(until=until, wait=max(end - time.monotonic(), 0), chain=chain)
            if status["ready"]:
                return status
            if time.monotonic() >= end:
                raise TimeoutError(f"{self.id}: {status['sentence']}")

    def result(self, timeout: float | None = None, chain: bool = True) -> Result:
        """Blocks until the end of the chain and returns its result; or raises Failed, or TimeoutError."""
        sentence = self.wait(timeout=timeout, chain=chain)["sentence"]
        answer = self._http.call("GET", self._path + "/result" + ("?chain=1" if chain else ""))
        state, result = answer["state"], answer.get("result") or {}
        if state["outcome"] not in ("success", "partial"):
            raise Failed(state["outcome"], sentence)
        known = {name: result.pop(name) for name in ("body", "summary", "variables", "usage", "status") if name in result}
        command = result.pop("command", {})
        return Result(goto=command.get("goto"), update=command.get("update", {}), more=result, **known)

    def watch(self, chain: bool = True) -> Iterator[Event]:
        """Yields the changes of the handoff and of its chain, each once, until the end."""
        last, end, pause = "", time.monotonic() + self._http.patience, 0.1
        while True:
            try:
                headers = _given({"Accept": "text/event-stream", "Last-Event-ID": last})
                with self._http.open("GET", self._path + "/events" + ("?chain=1" if chain else ""), None, headers) as answer:
                    for id, kind, data in _messages(answer):
                        last, pause, end = id or last, 0.1, time.monotonic() + self._http.patience
                        if kind == "end":
                            return
                        yield Event(**{name: data.get(name, "") for name in Event.__dataclass_fields__})
            except (*FAULTS, HandoffError) as err:
                if not _passes(err) or time.monotonic() > end:
                    raise
            time.sleep(pause)
            pause = min(pause * 2, 5)

    def answer(self, text: str = "", *, question: int | None = None, **answer: Json) -> Json:
        """Answers the open question: with a text, variables={…}, permit=True, or deny=True and deny_reason."""
        if question is None:
            question = self.status(chain=False)["state"].get("question", 0)
        return self._http.call("POST", self._path + "/answer", _given({"text": text, "question": question, **answer}))

    def cancel(self, reason: str = "") -> Json:
        """Cancels the handoff: at once, or by the next heartbeat of its worker."""
        return self._http.call("POST", self._path + "/cancel", _given({"reason": reason}))


def _messages(answer: http.client.HTTPResponse) -> Iterator[tuple[str, str, dict[str, Json]]]:
    message: dict[str, str] = {}
    for raw in answer:
        name, _, value = raw.decode().rstrip("\r\n").partition(":")
        if name:
            message[name] = message.get(name, "") + value.strip()
        elif value == "" and raw.strip() == b"":
            if "data" in message:
                yield message.get("id", ""), message.get("event", ""), json.loads(message["data"])
            message = {}


class Handoff:
    """A handoff at its worker. task and reason are texts; variables has those of the answers, too; brief is the whole as
    instructions for a model, in Markdown. cancelled: the work is to stop; a handler in a thread reads it now and then."""

    def __init__(self, held: dict[str, Json], report: Callable[[str, dict[str, Json]], Json]):
        state, package = held.get("state") or held, cast("dict[str, Json]", held["package"])
        context, self.package, self.attempt = package.get("context", {}), package, int(state.get("attempt", 0))
        self.ticket, self.agent, self.lease = str(state["ticket"]), str(held["agent"]), str(held.get("lease", ""))
        self.source, self.reason, self.task = str(package.get("source", "")), str(package.get("reason", "")), str(package["task"]["description"])
        self.variables, self.previous = cast("dict[str, Json]", dict(context.get("variables", {}))), context.get("previous")
        self.answers, self.trail, self.returns = (
            cast("list[Json]", held.get(name) or package.get(of) or []) for name, of in (("answers", "supplements"), ("trail", "trail"), ("returns", "returns")))
        self.cancelled, self.why, self.brief = False, "", str(held.get("brief") or self.task)  # why: it is to stop
        self._report, self._stop = report, cast("Callable[[], object]", lambda: None)
        for answer in self.answers:
            self.variables.update(answer.get("variables") or {})

    def progress(self, percent: float | None = None, message: str = "", **report: Json) -> Awaitable[None]:
        """Reports progress: awaited in a coroutine, called in a thread. It raises Cancelled if the work is to stop."""
        report = _given({"percent": percent, "message": message, **report})
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            self._progress(report)
            return cast("Awaitable[None]", None)  # a thread awaits nothing
        return _in_thread(self._progress, report)

    def _progress(self, report: dict[str, Json]) -> None:
        try:
            state = None if self.cancelled else self._report("progress", report)
            if state and state.get("cancel_requested"):
                self.stop("cancelled")
        except HandoffError as err:
            if err.code != "lease_lost":
                raise
            self.stop("lease_lost")
        if self.why:
            raise Cancelled(self.why)

    def stop(self, why: str) -> None:
        """Stops the work: its coroutine is cancelled, and cancelled is true."""
        if not self.cancelled:
            self.cancelled, self.why = True, why
            self._stop()


def _in_thread(fn: Callable[..., T], *args: Any) -> asyncio.Future[T]:
    """Runs fn in a thread of its own, which does not keep the process from ending."""
    future: Future[T] = Future()
    future.set_running_or_notify_cancel()  # it goes on if its caller is cancelled

    def run() -> None:
        try:
            future.set_result(fn(*args))
        except StopIteration:  # a future cannot have it
            future.set_exception(RuntimeError("StopIteration"))
        except BaseException as err:
            future.set_exception(err)
    threading.Thread(target=run, daemon=True).start()
    return asyncio.wrap_future(future)


Handler = TypeVar("Handler", bound=Callable[[Handoff], Any])


class Agent:
    """A worker of an agent. slots handoffs are worked on at a time; lease is how long the gateway keeps one for a worker
    that has gone silent, drain how long work may go on after SIGTERM, all in seconds."""

    def __init__(self, name: str, *, capabilities: list[str] | None = None, description: str = "", slots: int = 1, lease: float = 30,
                 drain: float = 30, url: str | None = None, token: str | None = None):
        self.name, self.slots, self.lease, self.drain, self._url, self._token = name, slots, lease, drain, url, token
        self.profile = {"id": name, "description": description, "capabilities": [{"id": c} for c in capabilities or []]}
        self._fn: Callable[[Handoff], Any] | None = None
        self._running: set[Handoff] = set()

    def work(self, fn: Handler) -> Handler:
        """Decorates the handler: a coroutine function, or a function that is called in a thread."""
        self._fn = fn
        return fn

    def run(self) -> None:
        """Serves the agent until SIGTERM or Ctrl-C, and then drains. In a process of "handoff work --stay" until its input ends."""
        asyncio.run(self._stay() if os.environ.get("HANDOFF_STAY") else self.serve())

    def test(self, fn: Callable[[Handoff], Any], package: dict[str, Json] | str) -> Result:
        """Runs a handler on a package, or on a task, without a gateway. It raises what the handler raises."""
        package = {"task": {"description": package}} if isinstance(package, str) else package
        h = Handoff({"package": package, "agent": self.name, "ticket": "test", "attempt": 1}, lambda verb, body: None)

        async def once() -> Result:
            return _result(await self._start(h, fn))

        with ThreadPoolExecutor(1) as pool:  # a loop may run in this thread
            return pool.submit(lambda: asyncio.run(once())).result()

    def _start(self, h: Handoff, fn: Callable[[Handoff], Any] | None) -> asyncio.Future[Any]:
        if fn is None:
            raise HandoffError("missing", "the agent has no handler: decorate one with @agent.work")
        if not inspect.iscoroutinefunction(fn):
            return _in_thread(fn, h)
        task: asyncio.Task[Any] = asyncio.ensure_future(fn(h))
        loop = asyncio.get_running_loop()
        h._stop = lambda: cast("object", loop.call_soon_threadsafe(task.cancel))
        return task

    async def _outcome(self, h: Handoff) -> tuple[str, dict[str, Json]]:
        """Calls the handler, and returns the verb and the body of its report."""
        try:
            result = _result(await self._start(h, self._fn))._wire()
            json.dumps(result, allow_nan=False)
            return "complete", result
        except _Refusal as err:
            return err.verb, err.report
        except asyncio.CancelledError:
            verb = "rollback" if h.why == "returned" else "release"
            return verb, {"reason": f"its worker has stopped: {h.why or 'cancelled by itself'}"}
        except Exception as err:
            log.exception("%s: the handler has failed", h.ticket)
            words = f"{type(err).__name__}: {err}"[:2000]
            return "fail", {"code": "handler", "message": words, "retryable": not isinstance(err, Permanent)}

    async def serve(self) -> None:
        """Serves the agent until its task is cancelled or a signal comes, and then drains."""
        http, loop, stopping = _Http(self._url, self._token, 60), asyncio.get_running_loop(), asyncio.Event()
        def stop(*_: object) -> None:
            stopping.set()
            http.stop_claiming()
        for number in (signal.SIGTERM, signal.SIGINT):
            with contextlib.suppress(NotImplementedError, RuntimeError, ValueError):  # on Windows, and outside of the main thread
                loop.add_signal_handler(number, stop)
        await _in_thread(http.call, "POST", "/v1/ops/Register", {"agent": self.name, "profile": _given(self.profile)})  # a profile that exists counts
        log.info("serving %s with %d slots", self.name, self.slots)
        free, tasks, pause = asyncio.Semaphore(self.slots), cast("set[asyncio.Task[None]]", set()), 0.1
        try:
            while not stopping.is_set():
                await free.acquire()
                held = None
                try:
                    held = None if stopping.is_set() else await _in_thread(self._claim, http)
                    pause = 0.1
                except (*FAULTS, HandoffError) as err:
                    if isinstance(err, HandoffError) and err.status in (400, 401, 403, 404, 422):
                        raise
                    if not stopping.is_set():
                        log.warning("no claim: %s", err)
                        await asyncio.wait({asyncio.ensure_future(stopping.wait())}, timeout=pause)
                        pause = min(pause * 2, 5)
                if held is None:
                    free.release()
                    continue
                task = asyncio.ensure_future(self._work(http, held))
                tasks.add(task)
                task.add_done_callback(tasks.discard)
                task.add_done_callback(lambda _: free.release())
        finally:
            if tasks:
                await asyncio.wait(tasks, timeout=self.drain)
            for h in list(self._running):
                h.stop("shutdown")
            if tasks:
                await asyncio.wait(tasks, timeout=10)

    def _claim(self, http: _Http) -> Json:
        body = {"wait_ms": int(WAIT * 1000), "lease_ms": int(self.lease * 1000), "ack_within_ms": 10000, "brief": True}
        begin = time.monotonic()
        held = None if http.stopped else http.once("POST", f"/v1/agents/{self.name}/claims", body, {}, claim=True)
        if held is None and time.monotonic() - begin < 1:
            time.sleep(1)
        return held

    async def _work(self, http: _Http, held: dict[str, Json]) -> None:
        lease: str = held["lease"]
        def report(verb: str, body: dict[str, Json]) -> Json:
            return http.call("POST", f"/v1/lease/{verb}", body, lease=lease, patience=60 if verb == "progress" else 600)
        h = Handoff({**held, "agent": self.name}, report)
        self._running.add(h)
        beat = None
        try:
            state = await _in_thread(report, "acknowledge", {"status": "accepted"})
            h.attempt = int(state.get("attempt", 1))
            beat = asyncio.ensure_future(self._beat(http, h))
            verb, body = await self._outcome(h)
            if body.get("limit_key") and body["limit_key"] not in state.get("limit_keys", ()):
                log.warning("%s: it has no place under %s; the failure does not pause it", h.ticket, body.pop("limit_key"))
            if h.why != "lease_lost" or verb == "complete":
                await _in_thread(report, verb, body)
        except (*FAULTS, HandoffError) as err:
            log.warning("%s: %s", h.ticket, err)
        finally:
            self._running.discard(h)
            if beat:
                beat.cancel()

    async def _beat(self, http: _Http, h: Handoff) -> None:
        confirmed = time.monotonic()
        while True:
            await asyncio.sleep(self.lease / 3)
            try:
                begin = time.monotonic()
                beat = await _in_thread(http.call, "POST", "/v1/lease/heartbeat", {}, h.lease, "", self.lease / 6)
                confirmed = begin
                if beat.get("cancel_requested"):
                    h.stop("returned" if beat.get("return") else "cancelled")
            except (*FAULTS, HandoffError) as err:
                if getattr(err, "code", "") == "lease_lost" or time.monotonic() - confirmed > self.lease:
                    h.stop("lease_lost")
                    return

    async def _stay(self) -> None:
        """The other end of "handoff work --stay": handoffs and reports as lines of JSON."""
        out = os.fdopen(os.dup(1), "w", encoding="utf-8")
        os.dup2(2, 1)  # what a library prints is no report
        loop, lines, lock = asyncio.get_running_loop(), cast("asyncio.Queue[dict[str, Json] | None]", asyncio.Queue()), threading.Lock()
        now: list[Handoff] = []
        def say(**line: Json) -> None:
            with lock:
                out.write(json.dumps(line) + "\n")
                out.flush()
        def read() -> None:
            for raw in sys.stdin.buffer:
                line = json.loads(raw)
                if "cancel" not in line:
                    loop.call_soon_threadsafe(lines.put_nowait, line)
                elif now and now[0].ticket == line["cancel"]:
                    now[0].stop(line["why"])
            if now:
                now[0].stop("shutdown")
            loop.call_soon_threadsafe(lines.put_nowait, None)
        threading.Thread(target=read, daemon=True).start()
        while (line := await lines.get()) is not None:
            h = Handoff(line, lambda verb, body, ticket=line["ticket"]: say(ticket=ticket, progress=body))  # type: ignore[misc]
            now[:] = [h]
            verb, body = await self._outcome(h)
            now.clear()
            ends: dict[str, dict[str, Json]] = {"rollback": {"ack": {"status": "returned", **body}}, "escalate": {"ack": {"status": "escalated", **body}},
                     "release": {"fail": {"code": "stopped", "message": body.get("reason")}}, "acknowledge": {"ack": body}, "complete": {"result": body}}
            say(ticket=h.ticket, **ends.get(verb, {verb: body}))

/**
 * Hand work from agent to agent with Handoff, over HTTP. Node 18 or later, Deno, Bun; nothing else.
 *
 *   const agent = new Agent("reviewer", { slots: 4 });
 *   agent.work(async (h) => `reviewed: ${h.task}`);
 *   await agent.run();
 *
 *   const ticket = await new Client().submit({ to: "reviewer", task: "the login form" });
 *   for await (const event of ticket.watch()) console.log(event.sentence);
 *   console.log((await ticket.result({ timeout: 600 })).body);
 *
 * HANDOFF_URL and HANDOFF_TOKEN name the gateway; "handoff work --stay" needs neither. Durations are in seconds.
 */
import process from "node:process";

const WAIT = 20; // the longest wait of one request
const PASSING = [429, 502, 503, 504];
const sleep = (seconds, signal) => new Promise((resolve) => {
  const end = () => {
    clearTimeout(timer);
    signal?.removeEventListener("abort", end);
    resolve();
  };
  const timer = setTimeout(end, seconds * 1000);
  signal?.addEventListener("abort", end);
});
const now = () => performance.now() / 1000;
const given = (fields) => Object.fromEntries(Object.entries(fields).filter(([, value]) => value !== undefined && value !== ""));

/** An error of the gateway. code is stable; field names the part of the request at fault; why is in words. */
export class HandoffError extends Error {
  constructor(code, why, field = "", status = 0, after = 0) {
    super(`${field} ${why}`.trim());
    Object.assign(this, { name: new.target.name, code, why, field, status, after });
  }
}
/** A handoff, or the last one of its chain, has closed without success. code is its outcome. */
export class Failed extends HandoffError {}
/** The work is to stop. why: cancelled, returned, lease_lost or shutdown. */
export class Cancelled extends Error {
  constructor(why) {
    super(why);
    Object.assign(this, { name: "Cancelled", why });
  }
}
/** The work has failed, and no further attempt mends it. */
export class Permanent extends Error {}

class Refusal extends Error {
  constructor(words, verb, report) {
    super(words);
    Object.assign(this, { name: new.target.name, verb, report: given(report) });
  }
}
/** Not for this agent. suggest names one that fits better. */
export class Reject extends Refusal {
  constructor(reason, { suggest, code } = {}) {
    super(reason, "acknowledge", { status: "rejected", reason, suggested_alternative: suggest, reason_code: code });
  }
}
/** The source has to answer first. The handoff comes back with the answers. */
export class NeedsContext extends Refusal {
  constructor(...needs) {
    super(needs.join("; "), "acknowledge", { status: "conditional", needs_context: needs });
  }
}
/** The source has to permit it first. */
export class NeedsPermission extends Refusal {
  constructor(...needs) {
    super(needs.join("; "), "acknowledge", { status: "conditional", needs_permission: needs });
  }
}
/** The handoff is to be offered again, after some seconds. */
export class RetryLater extends Refusal {
  constructor(seconds, reason) {
    super(reason, "acknowledge", { status: "conditional", reason, retry_after_ms: Math.round(seconds * 1000) });
  }
}
/** The provider throttles. The attempt has failed; key is a limit of the handoff, paused for all, 10 minutes at most. */
export class Throttled extends Refusal {
  constructor(seconds, { key, reason = "the provider throttles" } = {}) {
    super(reason, "fail", { code: "throttled", message: reason, retryable: true, retry_after_ms: Math.round(seconds * 1000), limit_key: key });
  }
}
/** The authority above the agent has to decide. */
export class Escalate extends Refusal {
  constructor(rationale, assessment) {
    super(rationale, "escalate", { rationale, assessment });
  }
}

/** The end of the work. goto names the next agent, or several. */
export class Result {
  constructor(body, { goto, update, await: waits, ...fields } = {}) {
    Object.assign(this, { status: "success", body, goto, update, await: waits, ...fields });
  }
  static of(value) {
    return value instanceof Result ? value : new Result(value);
  }
  toJSON() {
    const { goto, update, await: waits, ...fields } = this;
    const command = given({ goto, update, await: waits });
    return given({ ...fields, command: Object.keys(command).length ? command : undefined });
  }
}

/** The gateway. It repeats what may be repeated, for patience seconds. */
class Http {
  constructor({ url = process.env.HANDOFF_URL, token = process.env.HANDOFF_TOKEN, patience = 60 } = {}) {
    if (!url || !token) throw new HandoffError("missing", 'HANDOFF_URL and HANDOFF_TOKEN are not both set: eval "$(handoff dev env)"');
    Object.assign(this, { url: url.replace(/\/+$/, ""), token, patience });
  }
  async send(method, path, { body, headers = {}, signal } = {}) {
    const answer = await fetch(this.url + path, {
      method, signal, redirect: "error", body: body === undefined ? undefined : JSON.stringify(body),
      headers: { Authorization: `Bearer ${this.token}`, "Content-Type": "application/json", ...headers },
    });
    if (answer.ok) return answer;
    const problem = await answer.json().catch(() => ({}));
    throw new HandoffError(problem.code ?? "error", problem.detail ?? `HTTP status ${answer.status}`, problem.field ?? "", answer.status, Number(answer.headers.get("Retry-After") ?? 0));
  }
  /** Makes a call once, and returns undefined where the answer is empty. */
  async once(method, path, options = {}) {
    const limit = new AbortController(), { signal } = options, abort = () => limit.abort();
    const timer = setTimeout(abort, 60_000);
    signal?.addEventListener("abort", abort);
    try {
      const text = await (await this.send(method, path, { ...options, signal: limit.signal })).text();
      return text ? JSON.parse(text) : undefined;
    } finally {
      clearTimeout(timer);
      signal?.removeEventListener("abort", abort);
    }
  }
  /** Makes a call that may be repeated. */
  async call(method, path, body, { lease, headers = {}, patience = this.patience } = {}) {
    if (lease) headers = { ...headers, "Handoff-Lease": lease };
    const end = now() + patience;
    for (let pause = 0.1; ; pause = Math.min(pause * 2, 5)) {
      try {
        return await this.once(method, path, { body, headers });
      } catch (error) {
        if (!passes(error) || now() > end) throw error;
        await sleep(Math.max(error.after ?? 0, pause * (0.5 + Math.random() / 2)));
      }
    }
  }
}
const passes = (error) => (error instanceof HandoffError ? PASSING.includes(error.status) : !(error instanceof SyntaxError));
/** A source of handoffs. */
export class Client {
  #http;
  constructor(options = {}) {
    this.#http = new Http(options);
  }
  /** Hands a task to an agent or a capability; further fields are those of the package. The same key is the same handoff. */
  async submit({ key = crypto.randomUUID(), at, ...fields }) {
    const body = packageOf(fields);
    if (at) body.start_at = new Date(at).toISOString();
    const view = await this.#http.call("POST", "/v1/handoffs", body, { headers: { "Idempotency-Key": key } });
    return new Ticket(this.#http, view.state.ticket);
  }
  ticket(id) {
    return new Ticket(this.#http, id);
  }
  /** Creates a schedule, or replaces it: it submits the package at the instants of a cron expression in a time zone (UTC).
   * overlap is skip, queue or allow; missed is once, all or none; further fields are those of submit. */
  async every(name, cron, { zone, overlap, missed, ...fields }) {
    await this.call("POST", "/v1/ops/PutSchedule", given({ name, cron, zone, overlap, missed, package: packageOf(fields) }));
    return this.schedule(name);
  }
  schedule(name) {
    return new Schedule(this.#http, name);
  }
  schedules() {
    return this.call("POST", "/v1/ops/Schedules", {});
  }
  /** Sends a signal, which begins the handoffs of its rules, and returns its id. The same id begins nothing twice. */
  async signal(name, payload, { id = crypto.randomUUID() } = {}) {
    return (await this.#http.call("POST", `/v1/signals/${name}`, payload, { headers: { "Idempotency-Key": id } })).id;
  }
  /** Makes a request that may be repeated, such as GET /v1/inbox, and returns the JSON of the answer. */
  call(method, path, body) {
    return this.#http.call(method, path, body);
  }
}

const packageOf = ({ to, capability, task, reason = "asked for", variables, task_fields, ...fields }) => ({
  reason, ...fields, task: { description: task, ...task_fields },
  ...(to || capability ? { target: given({ agent: to, capability }) } : {}),
  ...(variables ? { context: { ...fields.context, variables } } : {}),
});

/** A schedule. Its status has cron, zone, package, the next instants, last (at and ticket), and the counts. */
export class Schedule {
  #http;
  constructor(http, name) {
    Object.assign(this, { name });
    this.#http = http;
  }
  #do(operation, options) {
    return this.#http.call("POST", `/v1/ops/${operation}`, { name: this.name }, options);
  }
  status() {
    return this.#do("Schedule");
  }
  pause() {
    return this.#do("PauseSchedule");
  }
  resume() {
    return this.#do("ResumeSchedule");
  }
  remove() {
    return this.#do("RemoveSchedule");
  }
  /** Submits the package now. It is not sent again if its answer is lost. */
  async run() {
    return new Ticket(this.#http, (await this.#do("RunSchedule", { patience: 0 })).ticket);
  }
}

/** A handoff that was submitted. */
export class Ticket {
  #http;
  #path;
  constructor(http, id) {
    this.id = id;
    this.#http = http;
    this.#path = `/v1/handoffs/${id}`;
  }
  toString() {
    return this.id;
  }
  /** Returns state, sentence, waiting_for and ready, after at most wait seconds. */
  status({ until = "closed", wait = 0, chain = true } = {}) {
    const ms = Math.max(0, Math.round(Math.min(wait, WAIT) * 1000));
    return this.#http.call("GET", `${this.#path}?until=${until}&wait_ms=${ms}${chain ? "&chain=1" : ""}`);
  }
  /** Waits until the handoff, or the last one of its chain, is closed, ended, accepted or asked. */
  async wait({ until = "closed", timeout = Infinity, chain = true } = {}) {
    for (const end = now() + timeout; ;) {
      const status = await this.status({ until, wait: end - now(), chain });
      if (status.ready) return status;
      if (now() >= end) throw new HandoffError("timeout", `${this.id}: ${status.sentence}`);
    }
  }
  /** Waits for the end of the chain and returns its result; or throws Failed. */
  async result({ timeout = Infinity, chain = true } = {}) {
    const { sentence } = await this.wait({ timeout, chain });
    const { state, result } = await this.#http.call("GET", `${this.#path}/result${chain ? "?chain=1" : ""}`);
    if (!["success", "partial"].includes(state.outcome)) throw new Failed(state.outcome, sentence);
    const { body, command, ...fields } = result ?? {};
    return new Result(body, { ...fields, ...command });
  }
  /** Yields the changes of the handoff and of its chain, each once, until the end. */
  async *watch({ chain = true, signal } = {}) {
    let last, pause = 0.1, end = now() + this.#http.patience;
    for (; !signal?.aborted; pause = Math.min(pause * 2, 5)) {
      try {
        const headers = { Accept: "text/event-stream", ...(last ? { "Last-Event-ID": last } : {}) };
        const answer = await this.#http.send("GET", `${this.#path}/events${chain ? "?chain=1" : ""}`, { headers, signal });
        for await (const { id, event, data } of messages(answer.body)) {
          [last, pause, end] = [id ?? last, 0.1, now() + this.#http.patience];
          if (event === "end") return;
          if (event === "change") yield JSON.parse(data);
        }
      } catch (error) {
        if (signal?.aborted) return;
        if (!passes(error) || now() > end) throw error;
      }
      await sleep(pause, signal);
    }
  }
  /** Answers the open question: { text }, { variables }, { permit: true } or { deny: true, deny_reason }. */
  async answer(answer) {
    const question = answer.question ?? (await this.status({ chain: false })).state.question;
    return this.#http.call("POST", `${this.#path}/answer`, given({ ...answer, question }));
  }
  /** Cancels the handoff: at once, or by the next heartbeat of its worker. */
  cancel(reason) {
    return this.#http.call("POST", `${this.#path}/cancel`, given({ reason }));
  }
}

async function* messages(body) {
  let text = "", message = {};
  const decoder = new TextDecoder();
  for await (const chunk of body) {
    text += decoder.decode(chunk, { stream: true });
    for (let at; (at = text.indexOf("\n")) >= 0;) {
      const line = text.slice(0, at).replace(/\r$/, "");
      text = text.slice(at + 1);
      const [, name, value] = /^([^:]*):? ?(.*)$/.exec(line) ?? [];
      if (name) message[name] = name === "data" ? (message.data ?? "") + value : value;
      else if (line === "") {
        if (message.data) yield message;
        message = {};
      }
    }
  }
}

/** A handoff at its worker. variables has those of the answers, too; brief is the whole as instructions for a model, in
 * Markdown. signal aborts when the work is to stop. */
export class Handoff {
  #abort = new AbortController();
  #report;
  constructor(held, report) {
    const state = held.state ?? held, { package: pkg } = held;
    const of = (name, or) => held[name] ?? pkg[name] ?? or;
    Object.assign(this, {
      package: pkg, ticket: state.ticket, agent: held.agent, attempt: state.attempt, lease: held.lease, source: pkg.source, reason: pkg.reason,
      task: pkg.task.description, brief: held.brief ?? pkg.task.description, answers: held.answers ?? pkg.supplements ?? [], trail: of("trail", []), returns: of("returns", []), previous: pkg.context?.previous,
    });
    this.variables = Object.assign({}, pkg.context?.variables, ...this.answers.map((answer) => answer.variables));
    this.#report = report;
  }
  get signal() {
    return this.#abort.signal;
  }
  get cancelled() {
    return this.#abort.signal.aborted;
  }
  /** Reports progress. It throws Cancelled if the work is to stop. */
  async progress(percent, message, more = {}) {
    try {
      if (!this.cancelled && (await this.#report("progress", given({ percent, message, ...more })))?.cancel_requested) this.stop("cancelled");
    } catch (error) {
      if (error.code !== "lease_lost") throw error;
      this.stop("lease_lost");
    }
    this.signal.throwIfAborted();
  }
  /** Stops the work: its signal aborts with Cancelled. */
  stop(why) {
    if (!this.cancelled) this.#abort.abort(new Cancelled(why));
  }
}

/** A worker of an agent: slots handoffs at a time; lease is how long the gateway keeps one for a silent worker, drain how
 * long work may go on after SIGTERM. */
export class Agent {
  #fn;
  #running = new Set();
  #stopping = new AbortController();
  constructor(name, { capabilities = [], description, slots = 1, lease = 30, drain = 30, url, token } = {}) {
    Object.assign(this, { name, slots, lease, drain, reach: given({ url, token }) });
    this.profile = given({ id: name, description, capabilities: capabilities.length ? capabilities.map((id) => ({ id })) : undefined });
  }
  /** Sets the handler. */
  work(fn) {
    this.#fn = fn;
    return fn;
  }
  /** Serves the agent until SIGTERM or Ctrl-C, and then drains. In a process of "handoff work --stay" until its input ends. */
  async run() {
    if (process.env.HANDOFF_STAY) return this.#stay();
    const stop = () => this.stop();
    for (const signal of ["SIGTERM", "SIGINT"]) process.on(signal, stop);
    try {
      await this.serve();
    } finally {
      for (const signal of ["SIGTERM", "SIGINT"]) process.off(signal, stop);
    }
  }
  /** Claims nothing more: serve drains and returns. */
  stop() {
    this.#stopping.abort();
  }
  /** Runs a handler on a package, or on a task, without a gateway. It throws what the handler throws. */
  async test(fn, pkg) {
    if (typeof pkg === "string") pkg = { task: { description: pkg } };
    return Result.of(await fn(new Handoff({ package: pkg, agent: this.name, ticket: "test", attempt: 1 }, async () => undefined)));
  }
  /** Calls the handler, and returns the verb and the body of its report. */
  async #outcome(h) {
    try {
      if (!this.#fn) throw new Permanent("the agent has no handler: set one with agent.work");
      const aborted = new Promise((_, reject) => h.signal.addEventListener("abort", () => reject(h.signal.reason), { once: true }));
      aborted.catch(() => {});
      return ["complete", JSON.parse(JSON.stringify(Result.of(await Promise.race([this.#fn(h), aborted]))))];
    } catch (error) {
      if (error instanceof Refusal) return [error.verb, error.report];
      if (h.cancelled) {
        const { why } = h.signal.reason;
        return why === "returned" ? ["rollback", { reason: "its worker has stopped" }] : ["release", { reason: `its worker has stopped: ${why}` }];
      }
      console.error(`${h.ticket}: the handler has failed:`, error);
      return ["fail", { code: "handler", message: String(error).slice(0, 2000), retryable: !(error instanceof Permanent) }];
    }
  }
  /** Serves the agent until stop, and then drains. */
  async serve() {
    const http = new Http(this.reach), stopping = this.#stopping.signal;
    await http.call("POST", "/v1/ops/Register", { agent: this.name, profile: this.profile }); // a profile that exists counts
    const works = new Set();
    for (let pause = 0.1; !stopping.aborted;) {
      if (works.size >= this.slots) {
        await Promise.race(works);
        continue;
      }
      try {
        const begin = now();
        const body = { wait_ms: WAIT * 1000, lease_ms: this.lease * 1000, ack_within_ms: 10000, brief: true };
        const held = await http.once("POST", `/v1/agents/${this.name}/claims`, { body, signal: stopping });
        pause = 0.1;
        if (held) {
          const work = this.#work(http, held).finally(() => works.delete(work));
          works.add(work);
        } else if (now() - begin < 1) await sleep(1, stopping);
      } catch (error) {
        if (stopping.aborted) break;
        if ([400, 401, 403, 404, 422].includes(error.status)) {
          await this.#drained(works);
          throw error;
        }
        console.error(`no claim: ${error.message}`);
        await sleep(pause, stopping);
        pause = Math.min(pause * 2, 5);
      }
    }
    await this.#drained(works);
  }
  async #drained(works) {
    const over = new AbortController(), all = Promise.all(works).then(() => over.abort());
    await Promise.race([all, sleep(this.drain, over.signal)]);
    for (const h of this.#running) h.stop("shutdown");
    await Promise.race([all, sleep(10, over.signal)]);
  }
  async #work(http, held) {
    const { lease } = held, over = new AbortController();
    const report = (verb, body) => http.call("POST", `/v1/lease/${verb}`, body, { lease, patience: verb === "progress" ? 60 : 600 });
    const h = new Handoff({ ...held, agent: this.name }, report);
    this.#running.add(h);
    try {
      const state = await report("acknowledge", { status: "accepted" });
      h.attempt = state.attempt;
      void this.#beat(http, h, over.signal);
      const [verb, body] = await this.#outcome(h);
      if (body.limit_key && !state.limit_keys?.includes(body.limit_key)) {
        console.error(`${h.ticket}: it has no place under ${body.limit_key}; the failure does not pause it`);
        delete body.limit_key;
      }
      if (h.signal.reason?.why !== "lease_lost" || verb === "complete") await report(verb, body);
    } catch (error) {
      console.error(`${h.ticket}: ${error.message}`);
    } finally {
      over.abort();
      this.#running.delete(h);
    }
  }
  async #beat(http, h, over) {
    for (let confirmed = now(); ;) {
      await sleep(this.lease / 3, over);
      if (over.aborted) return;
      try {
        const begin = now();
        const beat = await http.call("POST", "/v1/lease/heartbeat", {}, { lease: h.lease, patience: this.lease / 6 });
        confirmed = begin;
        if (beat.cancel_requested) h.stop(beat.return ? "returned" : "cancelled");
      } catch (error) {
        if (error.code === "lease_lost" || now() - confirmed > this.lease) return h.stop("lease_lost");
      }
    }
  }
  /** The other end of "handoff work --stay": handoffs and reports as lines of JSON. */
  async #stay() {
    const { createInterface } = await import("node:readline");
    const write = process.stdout.write.bind(process.stdout);
    const say = (line) => new Promise((resolve) => write(JSON.stringify(line) + "\n", resolve));
    process.stdout.write = process.stderr.write.bind(process.stderr); // what a library prints is no report
    let current, working = Promise.resolve();
    for await (const text of createInterface({ input: process.stdin, crlfDelay: Infinity })) {
      const line = JSON.parse(text);
      if (line.cancel) {
        if (current?.ticket === line.cancel) current.stop(line.why);
        continue;
      }
      const { ticket } = line;
      working = working.then(async () => {
        current = new Handoff(line, (_, progress) => say({ ticket, progress }));
        const [verb, body] = await this.#outcome(current);
        const lines = {
          rollback: { ack: { status: "returned", ...body } }, release: { fail: { code: "stopped", message: body.reason } },
          escalate: { ack: { status: "escalated", ...body } }, acknowledge: { ack: body }, complete: { result: body },
        };
        await say({ ticket, ...(lines[verb] ?? { [verb]: body }) });
      });
    }
    current?.stop("shutdown");
    await working;
  }
}

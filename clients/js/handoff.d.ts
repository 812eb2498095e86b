/** Hand work from agent to agent with Handoff, over HTTP. Durations are in seconds. */
export type Json = any;
export type Fields = { [name: string]: Json };
export type Why = "cancelled" | "returned" | "lease_lost" | "shutdown";
export type Until = "closed" | "ended" | "accepted" | "asked";

export class HandoffError extends Error {
  readonly code: string;
  readonly why: string;
  readonly field: string;
  readonly status: number;
}
export class Failed extends HandoffError {}
export class Cancelled extends Error {
  readonly why: Why;
}
export class Permanent extends Error {}
export class Reject extends Error {
  constructor(reason: string, options?: { suggest?: string; code?: string });
}
export class NeedsContext extends Error {
  constructor(...needs: string[]);
}
export class NeedsPermission extends Error {
  constructor(...needs: string[]);
}
export class RetryLater extends Error {
  constructor(seconds: number, reason: string);
}
export class Throttled extends Error {
  constructor(seconds: number, options?: { key?: string; reason?: string });
}
export class Escalate extends Error {
  constructor(rationale: string, assessment?: string);
}

export interface ResultFields {
  status?: "success" | "partial";
  goto?: string | Json[];
  update?: Fields;
  /** {agent, task} objects: the handoff comes back with returns when they have ended. */
  await?: Json[];
  summary?: string;
  variables?: Fields;
  usage?: Fields;
  [name: string]: Json;
}
export interface Result extends ResultFields {}
export class Result {
  constructor(body?: Json, fields?: ResultFields);
  readonly body: Json;
  readonly status: "success" | "partial";
}

export interface Event {
  readonly ticket: string;
  /** Grows with each change. */
  readonly seq: number;
  readonly at: string;
  readonly events: string[];
  readonly sentence: string;
  readonly phase: string;
  readonly agent: string;
  readonly closed: boolean;
  readonly outcome?: string;
}
export interface Status {
  readonly state: Fields & { ticket: string; phase: string; closed?: boolean; outcome?: string };
  readonly sentence: string;
  readonly waiting_for?: string;
  readonly ready: boolean;
}
export interface Reach {
  /** Default HANDOFF_URL. */
  url?: string;
  /** Default HANDOFF_TOKEN. */
  token?: string;
}

export interface Submission {
  to?: string;
  capability?: string;
  task: string;
  reason?: string;
  /** The same key is the same handoff. Default a fresh one. */
  key?: string;
  variables?: Fields;
  /** When it is offered, a Date or an RFC 3339 instant; default at once. */
  at?: Date | string;
  /** Further fields of the task. */
  task_fields?: Fields;
  /** Further fields of the package. */
  [name: string]: Json | Date;
}
export interface Timing {
  /** An IANA time zone, default UTC. */
  zone?: string;
  /** While the previous handoff is open; default skip. */
  overlap?: "skip" | "queue" | "allow";
  /** Of the instants at which no supervisor ran; default once. */
  missed?: "once" | "all" | "none";
}
export interface ScheduleStatus extends Fields {
  readonly name: string;
  readonly cron: string;
  /** The next instants; none if it is paused. */
  readonly next: string[];
  readonly paused_at?: string;
  readonly last?: { at: string; ticket: string };
}
export class Schedule {
  private constructor();
  readonly name: string;
  status(): Promise<ScheduleStatus>;
  pause(): Promise<ScheduleStatus>;
  resume(): Promise<ScheduleStatus>;
  /** Submits the package now. */
  run(): Promise<Ticket>;
  remove(): Promise<ScheduleStatus>;
}
export class Client {
  constructor(options?: Reach & { patience?: number });
  submit(submission: Submission): Promise<Ticket>;
  ticket(id: string): Ticket;
  /** Creates a schedule, or replaces it. Its submissions have neither key nor at. */
  every(name: string, cron: string, submission: Omit<Submission, "key" | "at"> & Timing): Promise<Schedule>;
  schedule(name: string): Schedule;
  schedules(): Promise<ScheduleStatus[]>;
  /** Sends a signal and returns its id, default a fresh one. The same id begins nothing twice. */
  signal(name: string, payload?: Json, options?: { id?: string }): Promise<string>;
  /** Makes a request that may be repeated, such as GET /v1/inbox. */
  call(method: "GET" | "POST", path: string, body?: Json): Promise<Json>;
}
export class Ticket {
  private constructor();
  readonly id: string;
  status(options?: { until?: Until; wait?: number; chain?: boolean }): Promise<Status>;
  wait(options?: { until?: Until; timeout?: number; chain?: boolean }): Promise<Status>;
  /** Throws Failed. */
  result(options?: { timeout?: number; chain?: boolean }): Promise<Result>;
  watch(options?: { chain?: boolean; signal?: AbortSignal }): AsyncGenerator<Event, void>;
  answer(answer: { text?: string; variables?: Fields; permit?: boolean; deny?: boolean; deny_reason?: string; question?: number }): Promise<Fields>;
  cancel(reason?: string): Promise<Fields>;
}

export class Handoff {
  private constructor();
  readonly package: Fields;
  readonly ticket: string;
  readonly agent: string;
  readonly attempt: number;
  readonly lease: string;
  readonly source: string;
  readonly reason: string;
  readonly task: string;
  readonly variables: Fields;
  readonly answers: Fields[];
  readonly trail: Fields[];
  readonly returns: Fields[];
  readonly previous: Json;
  readonly brief: string;
  /** Aborts with Cancelled when the work is to stop. */
  readonly signal: AbortSignal;
  readonly cancelled: boolean;
  /** Throws Cancelled if the work is to stop. */
  progress(percent?: number, message?: string, more?: Fields): Promise<void>;
}
export type Handler = (h: Handoff) => Json | Promise<Json>;
export class Agent {
  constructor(name: string, options?: Reach & { capabilities?: string[]; description?: string; slots?: number; lease?: number; drain?: number });
  work<H extends Handler>(fn: H): H;
  run(): Promise<void>;
  serve(): Promise<void>;
  stop(): void;
  test(fn: Handler, pkg: Fields | string): Promise<Result>;
}

// The later source of clients_test.go: one handoff that is not offered yet, and one that is offered at its start.
import assert from "node:assert";
import { Client } from "agenthandoff";

const client = new Client({ patience: 120 }), to = process.argv[2];
const far = new Date(Date.now() + 3_600_000), soon = new Date(Date.now() + 3_000);
const waits = await client.submit({ to, task: "plain", at: far });
const { state, waiting_for } = await waits.status();
assert.match(waiting_for, /^its start, at /);
assert.deepEqual([state.phase, state.offer ?? 0, new Date(state.start_at)], ["awaiting_approval", 0, far]);
const ticket = await client.submit({ to, task: "plain", at: soon.toISOString() });
await ticket.result({ timeout: 120 });
const ended = (await ticket.status()).state;
assert.ok(new Date(ended.accepted_at) >= new Date(ended.start_at), JSON.stringify(ended));
assert.match((await waits.status()).waiting_for, /^its start, at /);
await waits.cancel("not needed");
console.log((await waits.wait({ timeout: 120 })).state.outcome);

// The source of clients_test.go: hands n tasks to an agent, four at a time, and prints the body of each end.
import assert from "node:assert";
import { Client } from "agenthandoff";

const [, , agent, count] = process.argv, client = new Client({ patience: 120 });
let next = 0;
async function some() {
  for (let n; (n = next++) < Number(count);) {
    const ticket = await client.submit({ to: agent, task: `task ${n}`, key: `${agent}-${n}` });
    const seen = [];
    for await (const event of ticket.watch()) seen.push(event.seq);
    assert.deepEqual(seen, [...new Set(seen)].sort((a, b) => a - b));
    console.log(JSON.stringify({ ticket: ticket.id, body: (await ticket.result({ timeout: 120 })).body }));
  }
}
await Promise.all([some(), some(), some(), some()]);

// The again source of clients_test.go: a schedule that is run, paused, resumed and removed, and a signal that is sent twice.
import assert from "node:assert";
import { Client } from "agenthandoff";

const client = new Client({ patience: 120 });
const nightly = await client.every("nightly", "0 3 * * *", { zone: "Europe/Berlin", missed: "all", to: process.argv[2], task: "plain", variables: { depth: 2 } });
const status = await nightly.status();
assert.deepEqual([status.next.length, status.package.context.variables], [3, { depth: 2 }]);
assert.deepEqual((await client.schedules()).map((s) => s.name), ["nightly"]);
assert.equal((await nightly.pause()).next.length, 0);
assert.equal((await client.schedule("nightly").resume()).next.length, 3);
assert.equal((await (await nightly.run()).result({ timeout: 120 })).status, "success");
await nightly.remove();
await assert.rejects(nightly.run(), { code: "not_found" });
for (const _ of [1, 2]) assert.equal(await client.signal("order", { text: "plain" }, { id: "order-7" }), "order-7");
console.log(Boolean(await client.signal("nothing")));

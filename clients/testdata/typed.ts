import { Agent, Client, Failed, Handoff, NeedsContext, Reject, Result } from "agenthandoff";

const agent = new Agent("reviewer", { capabilities: ["review"], slots: 4 });
const review = agent.work(async (h: Handoff) => {
  if (!("branch" in h.variables)) throw new NeedsContext("which branch?");
  if (h.task.startsWith("deploy")) throw new Reject("I review", { suggest: "deployer" });
  await h.progress(40, "reading the diff");
  return new Result({ ok: !h.signal.aborted }, { goto: "tester" });
});
const tested: Result = await agent.test(review, "the login form");
const ticket = await new Client().submit({ to: "reviewer", task: "the login form", key: "review-417", at: new Date() });
const nightly = await new Client().every("nightly", "0 3 * * *", { zone: "Europe/Berlin", to: "tester", task: "run all tests" });
console.log((await nightly.pause()).next[0]?.trim(), (await nightly.run()).id, (await nightly.status()).last?.ticket);
console.log((await new Client().signal("order", { total: 120 }, { id: "order-7" })).trim());
for await (const event of ticket.watch()) event.sentence.trim();
try {
  console.log((await ticket.result({ timeout: 600 })).body, tested.goto);
} catch (error) {
  if (error instanceof Failed) console.log(error.code.trim(), error.why.trim());
}

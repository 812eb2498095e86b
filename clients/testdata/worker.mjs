// The worker of clients_test.go: the task names what to do.
import { existsSync, writeFileSync } from "node:fs";
import { Agent, Escalate, NeedsContext, NeedsPermission, Permanent, Reject, Result, RetryLater, Throttled } from "agenthandoff";

const agent = new Agent(process.argv[2], { capabilities: ["echo"], slots: 4, lease: Number(process.env.LEASE ?? 30), drain: 20 });
agent.work(async (h) => {
  if (h.task === "ask" && !h.variables.branch) throw new NeedsContext("which branch?");
  if (h.task === "permit" && !h.answers.length) throw new NeedsPermission("to push");
  if (h.task === "reject") throw new Reject("not I", { suggest: "another" });
  if (h.task === "later" && !existsSync("later")) {
    writeFileSync("later", "");
    throw new RetryLater(0.2, "busy");
  }
  if (h.task.startsWith("429") && h.attempt === 1) throw new Throttled(0.2, { key: h.task === "429" ? "test" : "another" });
  if (h.task === "escalate") throw new Escalate("a person decides");
  if (h.task === "permanent") throw new Permanent("broken");
  if (h.task === "once" && h.attempt === 1) throw new Error("the first attempt fails");
  if (h.task === "die" && h.attempt === 1) process.exit(3);
  if (h.task.startsWith("task")) await h.progress(50, "half of it");
  if (h.task === "next") return new Result("half", { goto: "another" });
  if (h.task === "long" || h.task === "drain") {
    h.signal.addEventListener("abort", () => console.error(`cancelled ${h.signal.reason.why}`));
    console.error(`begun ${h.task}`);
    await h.progress(40, "reading");
    await new Promise((resolve) => setTimeout(resolve, h.task === "drain" ? 1000 : 600_000).unref?.());
  }
  return { echo: h.task, variables: h.variables, answers: h.answers.length, attempt: h.attempt, token: process.env.HANDOFF_TOKEN ?? null, brief: h.brief.slice(0, 8) };
});
await agent.run();
console.error("drained");
process.exit(0);

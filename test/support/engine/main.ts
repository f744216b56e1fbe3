/** The test engine by itself: answers every conversation with a text, or from a JSON file that holds a list of replies. */
import { readFileSync } from "node:fs";
import { parseArgs } from "node:util";
import { startEngine, type EngineOptions, type EngineScript } from "./index.ts";

const { values } = parseArgs({
  options: {
    port: { type: "string", default: "8000" },
    flavour: { type: "string", default: "vllm" },
    level: { type: "string", default: "tokens" },
    model: { type: "string", default: "test-model" },
    script: { type: "string" },
    turns: { type: "string", default: "tools" },
    drift: { type: "string", default: "0" },
    tokens: { type: "string", default: "40" },
    trickle: { type: "string" },
    /** Ends with its standard input: no orphan outlives a parent that was killed. */
    attached: { type: "boolean", default: false },
  },
});
if (values.attached) process.stdin.resume().once("close", () => process.exit(0));
const words = "the gateway carries what the engine sampled ";
const script: EngineScript =
  values.script === undefined
    ? () => ({ content: words.repeat(Math.ceil(Number(values.tokens) / 7)), ...(values.trickle === undefined ? {} : { trickleMs: Number(values.trickle) }) })
    : (JSON.parse(readFileSync(values.script, "utf8")) as EngineScript);
const engine = await startEngine(script, {
  port: Number(values.port),
  flavour: values.flavour as NonNullable<EngineOptions["flavour"]>,
  level: values.level as NonNullable<EngineOptions["level"]>,
  model: values.model,
  turnsBy: values.turns as NonNullable<EngineOptions["turnsBy"]>,
  drift: Number(values.drift),
  forgetful: true,
});
console.log(engine.root);

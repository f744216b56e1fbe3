/** Entry of `npm run bench -- NAME`: exits with 1 when a promised figure was missed. */
import { gatewayBench } from "./gateway/gateway.ts";
import { runBench } from "./run.ts";
import { sandboxBench } from "./sandbox.ts";

const [name] = process.argv.slice(2);
const json = process.argv.includes("--json");
const holds = name === "run" ? runBench(json) : name === "gateway" ? await gatewayBench(json) : await sandboxBench(json);
process.exitCode = holds ? 0 : 1;

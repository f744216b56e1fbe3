/** Entry of `npm run bench -- NAME`: exits with 1 when a promised figure was missed. */
import { loadBench } from "./delivery/load.ts";
import { deliveryBench } from "./delivery/throughput.ts";
import { gatewayBench } from "./gateway/gateway.ts";
import { runBench } from "./run.ts";
import { sandboxBench } from "./sandbox.ts";
import { serverBench } from "./server.ts";
import { snapshotBench } from "./snapshot.ts";

const [name] = process.argv.slice(2);
const json = process.argv.includes("--json");
const BENCHES: Readonly<Record<string, (json: boolean) => boolean | Promise<boolean>>> = { sandbox: sandboxBench, snapshot: snapshotBench, run: runBench, gateway: gatewayBench, load: loadBench, delivery: deliveryBench, server: serverBench };
const holds = await BENCHES[name ?? ""]?.(json);
process.exitCode = holds === true ? 0 : 1;

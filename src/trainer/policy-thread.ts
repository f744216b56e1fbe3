/** The policy server in a thread of its own: it samples while others compute. */
import { join } from "node:path";
import { systemRuntime } from "../core/runtime.ts";
import { Model } from "./model/decoder.ts";
import { parameterShapes, type ModelShape } from "./model/shape.ts";
import { readTensors } from "./safetensors.ts";
import { Engine, type Weights } from "./server/engine.ts";
import { startPolicyServer } from "./server/http.ts";
import { serveThread } from "./thread.ts";

export interface PolicyGiven {
  readonly shape: ModelShape;
  readonly model: string;
  readonly key: string;
  /** Where the first weights are. */
  readonly directory: string;
  readonly version: string;
}

/** It is asked once, and answers with its address when it is up. */
export interface PolicyContract {
  readonly given: PolicyGiven;
  readonly request: null;
  readonly result: string;
}

await serveThread<PolicyContract>(async ({ shape, model, key, directory, version }) => {
  const shapes = parameterShapes(shape);
  const readWeights = async (path: string, name: string): Promise<Weights> => ({ model: new Model(shape, await readTensors(join(path, "model.safetensors"), shapes)), version: name });
  const engine = new Engine(await readWeights(directory, version));
  const server = await startPolicyServer({ engine, model, key, readWeights, runtime: systemRuntime });
  return () => Promise.resolve(server.url);
});

/** The embedded policy as a model server: what is behind the gateway, and how it gets new weights. */
import { MwError } from "../core/errors.ts";
import type { Runtime } from "../core/runtime.ts";
import type { PolicyContract, PolicyGiven } from "./policy-thread.ts";
import { Thread } from "./thread.ts";

export interface PolicyServerHandle {
  /** As an upstream of kind `sglang`. */
  readonly url: string;
  readonly key: string;
  /** Samples with the weights in `directory` from the next token on, also in answers that are under way. */
  update(directory: string, version: string): Promise<void>;
  close(): Promise<void>;
}

export async function startPolicy(given: Omit<PolicyGiven, "key">, runtime: Runtime): Promise<PolicyServerHandle> {
  const key = Buffer.from(runtime.randomBytes(24)).toString("hex");
  const thread = new Thread<PolicyContract>("the policy server", "./policy-thread", import.meta.url, { ...given, key });
  const url = await thread.ask(null).catch(async (error: unknown) => {
    await thread.close();
    throw error;
  });
  return {
    url,
    key,
    async update(directory, version) {
      const response = await fetch(`${url}/update_weights_from_disk`, { method: "POST", headers: { authorization: `Bearer ${key}`, "content-type": "application/json" }, body: JSON.stringify({ model_path: directory, weight_version: version }) });
      if (!response.ok) throw new MwError("internal", `the policy server took no new weights: ${await response.text()}`);
    },
    close: () => thread.close(),
  };
}

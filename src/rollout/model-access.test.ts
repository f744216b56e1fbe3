import { appendFileSync, cpSync, mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, expect, it } from "vitest";
import { startEngine } from "../../test/support/engine/index.ts";
import { MODEL_DIRECTORY } from "../../test/support/engine/tokenizer.ts";
import { systemRuntime } from "../core/runtime.ts";
import { openGateway } from "../gateway/gateway.ts";
import { openFixedModel, type FixedModel } from "./model-access.ts";

const place = mkdtempSync(join(tmpdir(), "mw-access-"));
afterAll(() => rmSync(place, { recursive: true, force: true }));

it("does not go on with a run whose tokenizer has changed since", async () => {
  const directory = join(place, "model");
  cpSync(MODEL_DIRECTORY, directory, { recursive: true });
  const engine = await startEngine([{ content: "x" }], { flavour: "vllm" });
  const gateway = await openGateway({ runtime: systemRuntime, socketPath: join(place, "gateway"), port: null });
  const open = (digest: string | null): Promise<FixedModel> =>
    openFixedModel(gateway, { url: `vllm=${engine.root}`, model: "test-model", sampling: {}, requireTokens: true, tokenizer: { directory, family: null, digest } }, null, systemRuntime, new AbortController().signal);
  try {
    const first = await open(null);
    const digest = first.config.tokenizer?.digest ?? null;
    expect(digest).toMatch(/^sha256:[0-9a-f]{64}$/);
    await first.access.close();
    await (await open(digest)).access.close();
    appendFileSync(join(directory, "tokenizer_config.json"), "\n");
    await expect(open(digest)).rejects.toMatchObject({ code: "conflict" });
  } finally {
    await engine.close();
    await gateway.close();
  }
});

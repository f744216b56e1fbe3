/** A controller of a data directory that is made to be killed: does what its parent sends, and says what came of it. */
import { openNativeBackend } from "../../src/sandbox/index.ts";
import type { ExecId, SandboxId } from "../../src/core/ids.ts";
import type { Sandbox, SandboxSpec } from "../../src/sandbox/sandbox.ts";

export interface Errand {
  readonly spec?: SandboxSpec;
  readonly sandbox?: SandboxId;
  /** A command to begin under this id, `/bin/sh -c`. */
  readonly begin?: { readonly id: ExecId; readonly command: string };
  /** A command to its end, before anything else. */
  readonly run?: string;
  /** Begins this and says so at once. */
  readonly start?: "create" | "upload" | "snapshot" | "fork" | "freeze" | "seal" | "allow" | "remake";
}

export interface Done {
  readonly sandbox?: SandboxId;
  readonly pid?: number;
  readonly error?: string;
}

const [home = "", keepSeconds = "0"] = process.argv.slice(2);
const say = (done: Done): void => void process.send?.(done);

try {
  const backend = await openNativeBackend({ home, keepSeconds: Number(keepSeconds), log: () => undefined });
  process.on("message", (errand: Errand) => {
    void work(errand).then(say, (error: unknown) => say({ error: String(error) }));
  });
  say({});

  const work = async ({ spec, sandbox: id, run, begin, start }: Errand): Promise<Done> => {
    if (start === "create" && spec !== undefined) {
      for (let n = 0; n < 50; n++) void backend.create({ ...spec, key: `key-${n}` }).catch(() => undefined);
      return {};
    }
    const sandbox = id === undefined && spec !== undefined ? await backend.create(spec) : id === undefined ? null : backend.get(id);
    if (sandbox === null) throw new Error("No such sandbox");
    if (run !== undefined) await sandbox.run({ command: run });
    const exec = begin === undefined ? null : await sandbox.exec({ id: begin.id, command: begin.command, openStdin: true });
    const pid = exec?.pid ?? undefined;
    await underway(sandbox, start);
    return { sandbox: sandbox.id, ...(pid === undefined ? {} : { pid }) };
  };
} catch (error) {
  say({ error: error instanceof Error && "code" in error ? String(error.code) : String(error) });
  process.exit(1);
}

async function underway(sandbox: Sandbox, what: Errand["start"]): Promise<void> {
  if (what === "upload") void sandbox.files.write("/upload", endless()).catch(() => undefined);
  else if (what === "snapshot") void (async () => { for (;;) await sandbox.snapshot(); })().catch(() => undefined);
  else if (what === "fork") void (async () => { for (;;) await sandbox.fork(1); })().catch(() => undefined);
  else if (what === "remake") {
    await sandbox.pause({ memory: true });
    await sandbox.resume();
  } else if (what === "allow") {
    sandbox.egress?.allow(["b.example"]);
    // Behind it in the same socket.
    await sandbox.metrics();
  } else if (what === "freeze") await sandbox.freeze();
  // Its reader runs on.
  else if (what === "seal") await (await sandbox.seal()).changes();
}

async function* endless(): AsyncGenerator<Uint8Array> {
  for (;;) {
    yield Buffer.alloc(65_536, 1);
    await new Promise((resolve) => setTimeout(resolve, 2));
  }
}

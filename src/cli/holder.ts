/** The process behind `mw sandbox create`: it owns the spawner of its machines, the one that it was started for and those that were forked of it, and carries out what other commands ask. */
import type { Socket } from "node:net";
import { join } from "node:path";
import type { Duplex } from "node:stream";
import { MwError } from "../core/errors.ts";
import { execEnvironment, runDirectory } from "../sandbox/index.ts";
import type { Sandbox, SandboxEnd } from "../sandbox/sandbox.ts";
import type { AppContext } from "./context.ts";
import { serveHeld, type HeldRequest } from "./held-control.ts";
import { forgetHeld, recordHeld } from "./held-machines.ts";
import { note, printable } from "./output.ts";
import { listenPrivately } from "./private-socket.ts";

export class Holder {
  readonly #context: AppContext;
  readonly #directory: string;
  readonly #image: string;
  readonly #machines = new Map<string, Sandbox>();
  readonly #control: string;
  /** Resolves with how the last machine ended. */
  readonly over: Promise<SandboxEnd>;
  readonly #passages = new Map<string, () => Promise<void>>();
  #finish: (end: SandboxEnd) => void = () => undefined;

  constructor(context: AppContext, directory: string, image: string) {
    this.#context = context;
    this.#directory = directory;
    this.#image = image;
    this.#control = `${runDirectory(directory)}.control`;
    this.over = new Promise((resolve) => (this.#finish = resolve));
  }

  /** Returns what stops it. */
  async serve(): Promise<() => Promise<void>> {
    const stop = await serveHeld(this.#control, (request) => this.#carryOut(request));
    return async () => {
      await stop();
      await Promise.all([...this.#passages.values()].map((close) => close()));
    };
  }

  async hold(sandbox: Sandbox): Promise<void> {
    this.#machines.set(sandbox.id, sandbox);
    const { passage } = sandbox;
    if (passage !== undefined) this.#passages.set(sandbox.id, await listenPrivately(this.#passageOf(sandbox), (socket) => void passOn(socket, passage.open)));
    this.#record(sandbox);
    this.#tellRefusals(sandbox);
    void sandbox.ended.then((end) => {
      this.#machines.delete(sandbox.id);
      forgetHeld(this.#directory, sandbox.id);
      if (this.#machines.size === 0) this.#finish(end);
    });
  }

  async killAll(): Promise<void> {
    await Promise.all([...this.#machines.values()].map((sandbox) => sandbox.kill()));
  }

  async #carryOut(request: HeldRequest): Promise<unknown> {
    const sandbox = this.#machines.get(request.id);
    if (sandbox === undefined) throw new MwError("sandbox_gone", `The sandbox ${request.id} is over`);
    switch (request.do) {
      case "snapshot":
        // Whoever starts from it need not remember the image.
        return sandbox.snapshot({ memory: request.memory, labels: { image: this.#image }, ...(request.name === null ? {} : { name: request.name }) });
      case "fork": {
        const results = await sandbox.fork(request.count, { memory: request.memory });
        for (const result of results) if (result.ok) await this.hold(result.sandbox);
        return results.map((result) => (result.ok ? { sandbox: result.sandbox.id } : { error: { code: result.error.code, message: result.error.message } }));
      }
      case "pause":
        await sandbox.pause({ memory: request.memory });
        this.#record(sandbox);
        return null;
      case "resume":
        await sandbox.resume();
        this.#record(sandbox);
        return null;
      case "kill":
        await sandbox.kill();
        return null;
      case "network":
        return networkOf(sandbox, request.allow);
    }
  }

  #passageOf({ id }: Sandbox): string {
    return `${runDirectory(this.#directory)}.${id}`;
  }

  /** A refusal is told where the machine is held, when it happens. */
  #tellRefusals(sandbox: Sandbox): void {
    sandbox.egress?.onRefusal(({ message }) => note(this.#context, printable(`${sandbox.id}: network: ${message}`)));
  }

  #record(sandbox: Sandbox): void {
    const { root } = sandbox.spec;
    recordHeld(this.#directory, {
      id: sandbox.id,
      image: this.#image,
      createdAt: this.#context.runtime.now(),
      socket: sandbox.socket ?? (sandbox.passage === undefined ? join(runDirectory(this.#directory), sandbox.id, "init.sock") : this.#passageOf(sandbox)),
      filesProgram: sandbox.passage?.filesProgram ?? null,
      control: this.#control,
      state: sandbox.state,
      env: execEnvironment(sandbox.spec),
      user: sandbox.spec.user ?? root.user,
      workdir: join("/", sandbox.spec.workdir ?? root.workdir),
    });
  }
}

/** What another process sends goes into the machine, and what comes of it goes back; when one end is over, so is the other. */
async function passOn(socket: Socket, open: () => Promise<Duplex>): Promise<void> {
  try {
    const link = await open();
    socket.once("close", () => link.destroy());
    link.once("close", () => socket.destroy());
    if (socket.destroyed) link.destroy();
    socket.pipe(link).pipe(socket);
  } catch {
    // Its client learns that nothing is there.
    socket.destroy();
  }
}

function networkOf(sandbox: Sandbox, allow: readonly string[] | null): unknown {
  const { egress, spec } = sandbox;
  const mode = spec.network ?? "none";
  if (allow !== null && egress === undefined) throw new MwError("unsupported", `the network of ${sandbox.id} is ${mode}: it has no list of hosts`, { fix: "make the machine with --network allowlist" });
  if (allow !== null) egress?.allow(allow);
  return { network: mode, egress: egress?.report() ?? null };
}

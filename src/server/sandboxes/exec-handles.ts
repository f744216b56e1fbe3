/**
 * Commands that clients started, by their ids. A machine has one attachment to each command; here it is kept between requests, so that input, signals and output of one command
 * come in requests of their own.
 */
import { MwError } from "../../core/errors.ts";
import type { ExecId } from "../../core/ids.ts";
import { LIMITS } from "../../core/limits.ts";
import type { Exec, ExecOptions, Sandbox } from "../../sandbox/sandbox.ts";

interface Handle {
  /** Being attached, maybe: input that comes meanwhile waits for it, since what goes to the attachment before is lost. */
  readonly exec: Promise<Exec>;
  /** Its output is iterated once only. */
  read: boolean;
}

export class ExecHandles {
  readonly #bySandbox = new WeakMap<Sandbox, Map<string, Handle>>();

  /** Starts it, or gives the one that has the id. */
  async start(sandbox: Sandbox, options: ExecOptions): Promise<Exec> {
    if (options.id !== undefined) return (this.#of(sandbox).get(options.id) ?? this.#keep(sandbox, options.id, sandbox.exec(options), false)).exec;
    const exec = await sandbox.exec(options);
    return this.#keep(sandbox, exec.id, Promise.resolve(exec), false).exec;
  }

  /** For input, signals and sizes: whoever reads its output goes on reading. */
  async get(sandbox: Sandbox, id: string): Promise<Exec> {
    return (this.#of(sandbox).get(id) ?? this.#keep(sandbox, id, sandbox.attach(idOf(id)), false)).exec;
  }

  /** For its output from these offsets on. A reader that was there before is told that it was replaced. */
  async read(sandbox: Sandbox, id: string, offsets: { readonly stdout: number; readonly stderr: number }): Promise<Exec> {
    const known = this.#of(sandbox).get(id);
    if (known !== undefined && !known.read && offsets.stdout === 0 && offsets.stderr === 0) {
      known.read = true;
      return known.exec;
    }
    return this.#keep(sandbox, id, sandbox.attach(idOf(id), offsets), true).exec;
  }

  /** It is forgotten in the sandbox too. `conflict` while it runs. */
  async forget(sandbox: Sandbox, id: string): Promise<void> {
    await (await this.get(sandbox, id)).acknowledge().catch((error: unknown) => {
      throw error instanceof MwError && error.code === "busy" ? new MwError("conflict", `the exec ${id} still runs`, { fix: "end it first", cause: error }) : error;
    });
    this.#of(sandbox).delete(id);
  }

  #keep(sandbox: Sandbox, id: string, exec: Promise<Exec>, read: boolean): Handle {
    const handles = this.#of(sandbox);
    const handle: Handle = { exec, read };
    handles.set(id, handle);
    exec.then(
      // Who waits for its end sees it; here nobody does.
      ({ exit }) => exit.catch(() => undefined),
      () => {
        if (handles.get(id) === handle) handles.delete(id);
      },
    );
    // Those that the sandbox has forgotten by now.
    if (handles.size > LIMITS.execsPerSandbox + LIMITS.execsRetained) handles.delete(handles.keys().next().value ?? "");
    return handle;
  }

  #of(sandbox: Sandbox): Map<string, Handle> {
    const known = this.#bySandbox.get(sandbox);
    if (known !== undefined) return known;
    const made = new Map<string, Handle>();
    this.#bySandbox.set(sandbox, made);
    return made;
  }
}

function idOf(id: string): ExecId {
  if (!/^[A-Za-z0-9._-]{1,64}$/.test(id)) throw new MwError("not_found", `there is no exec ${JSON.stringify(id.slice(0, 100))}`);
  // Clients choose ids; this is the form that they have.
  return id as ExecId;
}

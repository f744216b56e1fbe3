/** Users of a sandbox: names and homes as its own files have them. Remembered for a moment, since nearly every request needs them. */
import { posix } from "node:path";
import type { Runtime } from "../../../core/runtime.ts";
import type { Sandbox } from "../../../sandbox/sandbox.ts";
import { ConnectFailure } from "./connect-protocol.ts";

export interface Account {
  readonly name: string;
  readonly uid: number;
  readonly gid: number;
  readonly home: string;
}

interface Tables {
  readonly at: number;
  readonly users: ReadonlyMap<string, Account>;
  readonly userNames: ReadonlyMap<number, string>;
  readonly groupNames: ReadonlyMap<number, string>;
}

const KNOWN_MS = 10_000;
const TABLE_BYTES = 1 << 20;

export class Accounts {
  readonly #runtime: Runtime;
  readonly #tables = new WeakMap<Sandbox, Promise<Tables>>();

  constructor(runtime: Runtime) {
    this.#runtime = runtime;
  }

  /** `invalid_argument` for a name that the sandbox does not know. */
  async find(sandbox: Sandbox, name: string): Promise<Account> {
    for (const fresh of [false, true]) {
      const { users } = await this.#read(sandbox, fresh);
      const account = users.get(name);
      if (account !== undefined) return account;
    }
    // Root is there without a file that says so.
    if (name === "root" || name === "0" || name === "") return { name: "root", uid: 0, gid: 0, home: "/root" };
    throw new ConnectFailure("invalid_argument", `the sandbox has no user ${JSON.stringify(name.slice(0, 100))}`);
  }

  async namesOf(sandbox: Sandbox): Promise<{ readonly user: (uid: number) => string; readonly group: (gid: number) => string }> {
    const { userNames, groupNames } = await this.#read(sandbox, false);
    return { user: (uid) => userNames.get(uid) ?? String(uid), group: (gid) => groupNames.get(gid) ?? String(gid) };
  }

  async #read(sandbox: Sandbox, fresh: boolean): Promise<Tables> {
    const known = this.#tables.get(sandbox);
    if (known !== undefined && !fresh) {
      const tables = await known;
      if (this.#runtime.monotonic() - tables.at < KNOWN_MS) return tables;
    }
    const reading = this.#load(sandbox);
    this.#tables.set(sandbox, reading);
    reading.catch(() => this.#tables.delete(sandbox));
    return reading;
  }

  async #load(sandbox: Sandbox): Promise<Tables> {
    const read = async (path: string): Promise<readonly string[][]> => {
      const text = await sandbox.files.read(path, { maxBytes: TABLE_BYTES }).then((bytes) => Buffer.from(bytes).toString("utf8"), () => "");
      return text.split("\n").map((line) => line.split(":"));
    };
    const [passwd, group] = await Promise.all([read("/etc/passwd"), read("/etc/group")]);
    const users = new Map<string, Account>();
    for (const [name = "", , uid = "", gid = "", , home = ""] of passwd) {
      if (name !== "" && /^\d+$/.test(uid) && /^\d+$/.test(gid) && !users.has(name)) users.set(name, { name, uid: Number(uid), gid: Number(gid), home: home.startsWith("/") ? posix.normalize(home) : "/" });
    }
    const groupNames = new Map<number, string>();
    for (const [name = "", , gid = ""] of group) if (name !== "" && /^\d+$/.test(gid) && !groupNames.has(Number(gid))) groupNames.set(Number(gid), name);
    const userNames = new Map<number, string>();
    for (const { uid, name } of users.values()) if (!userNames.has(uid)) userNames.set(uid, name);
    return { at: this.#runtime.monotonic(), users, userNames, groupNames };
  }
}

/** Where a path that a client gives leads: `~` and relative ones begin at the user's home. */
export function resolvePath(path: string, home: string): string {
  if (path.includes("\0")) throw new ConnectFailure("invalid_argument", "a path cannot hold a NUL character");
  if (path === "~" || path.startsWith("~/")) return posix.join(home, path.slice(1));
  if (path.startsWith("~")) throw new ConnectFailure("invalid_argument", "the home of another user is not looked up");
  return posix.resolve(home, path);
}

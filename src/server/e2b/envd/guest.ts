/** One request's view of a sandbox: the machine, who asks inside it, and where relative paths begin. */
import type { IncomingMessage } from "node:http";
import type { Sandbox } from "../../../sandbox/sandbox.ts";
import type { SandboxEntry } from "../../sandboxes/sandbox-entry.ts";
import type { Account, Accounts } from "./accounts.ts";
import { ConnectFailure } from "./connect-protocol.ts";

export interface Guest {
  readonly entry: SandboxEntry;
  readonly sandbox: Sandbox;
}

export interface GuestUser extends Account {
  /** What execs and owners are given; empty: the sandbox's default. */
  readonly spec: string;
  /** Working directory of commands and of relative paths. */
  readonly workdir: string;
}

/** The user of a call: the name in `Authorization: Basic`, else the sandbox's own. */
export async function userOf(accounts: Accounts, sandbox: Sandbox, asked: string | null): Promise<GuestUser> {
  const own = (sandbox.spec.user ?? sandbox.spec.root.user).split(":")[0] ?? "";
  const account = await accounts.find(sandbox, asked ?? (own === "" ? "root" : own));
  const workdir = sandbox.spec.workdir ?? sandbox.spec.root.workdir;
  // Root is there whatever the machine's files say, and is nobody else.
  const spec = asked === "root" ? "0" : (asked ?? "");
  return { ...account, spec, workdir: workdir === "" || workdir === "/" ? account.home : workdir };
}

export function basicUser(request: IncomingMessage): string | null {
  const { authorization } = request.headers;
  if (authorization === undefined) return null;
  const match = /^Basic +([A-Za-z0-9+/=]+)$/i.exec(authorization);
  if (match === null) throw new ConnectFailure("unauthenticated", "the user of a call comes as Authorization: Basic");
  const [user = ""] = Buffer.from(match[1] ?? "", "base64").toString("utf8").split(":");
  return user === "" ? null : user;
}

/**
 * Where a data directory's sockets live: short, because a unix socket's path has at most 107 bytes, private, and gone after a reboot.
 */
import { createHash } from "node:crypto";
import { lstatSync, mkdirSync, realpathSync } from "node:fs";
import { isAbsolute, join } from "node:path";
import { MwError } from "../../../core/errors.ts";

type Env = Readonly<Record<string, string | undefined>>;

/** Makes the directory's parent if need be (mode 0700, owned by us) and returns the path for this data directory. */
export function runDirectory(home: string, env: Env = process.env): string {
  const uid = process.getuid?.() ?? 0;
  const base = baseDirectory(uid, env);
  mkdirSync(base, { recursive: true, mode: 0o700 });
  const { uid: owner, mode } = lstatSync(base);
  const isDirectory = lstatSync(base).isDirectory();
  // In a directory that everybody may write, somebody else may have been first.
  if (!isDirectory || owner !== uid || (mode & 0o022) !== 0) {
    throw new MwError("environment", `The directory for sandbox sockets ${base} is not ours alone`, { fix: `Remove it, or set XDG_RUNTIME_DIR to a private directory.` });
  }
  return join(base, createHash("sha256").update(realpathSync(home)).digest("hex").slice(0, 8));
}

/** Where this data directory's gateway listens for its machines; one controller at a time does. */
export function gatewaySocket(home: string, env: Env = process.env): string {
  return `${runDirectory(home, env)}.gateway`;
}

/** Where the egress proxy of this data directory's machines listens. */
export function egressSocket(home: string, env: Env = process.env): string {
  return `${runDirectory(home, env)}.egress`;
}

function baseDirectory(uid: number, env: Env): string {
  if (uid === 0) return "/run/manyworlds";
  const runtime = env["XDG_RUNTIME_DIR"];
  // Longer would leave no room for the sandbox's part of the socket path.
  if (runtime !== undefined && isAbsolute(runtime) && Buffer.byteLength(runtime) <= 40) return join(runtime, "manyworlds");
  return `/tmp/manyworlds-${uid}`;
}

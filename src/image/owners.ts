/** How the owners of an image's files are kept: as they are (root), in the user's subordinate ids, or not at all. */
import { existsSync, readFileSync } from "node:fs";
import { userInfo } from "node:os";

export type OwnersMode =
  | { readonly kind: "kept" }
  /** First subordinate ids; inside, the user is 0 and they are 1 to 65535. Machines use the same mapping. */
  | { readonly kind: "mapped"; readonly firstUid: number; readonly firstGid: number }
  | { readonly kind: "flattened" };

let mode: OwnersMode | null = null;

export function ownersMode(): OwnersMode {
  mode ??= find();
  return mode;
}

function find(): OwnersMode {
  if (process.geteuid?.() === 0) return { kind: "kept" };
  const firstUid = firstSubordinate("/etc/subuid");
  const firstGid = firstSubordinate("/etc/subgid");
  const programs = ["newuidmap", "newgidmap"].every((name) => ["/usr/bin", "/bin"].some((directory) => existsSync(`${directory}/${name}`)));
  return firstUid === null || firstGid === null || !programs ? { kind: "flattened" } : { kind: "mapped", firstUid, firstGid };
}

/** The user's first range that has room for all ids of an image. */
function firstSubordinate(file: string): number | null {
  let text: string;
  let names: readonly string[];
  try {
    text = readFileSync(file, "utf8");
    const { username, uid } = userInfo();
    names = [username, String(uid)];
  } catch {
    return null;
  }
  for (const line of text.split("\n")) {
    const [name = "", first, count] = line.split(":");
    if (names.includes(name) && Number(count) >= 65535 && Number.isSafeInteger(Number(first))) return Number(first);
  }
  return null;
}

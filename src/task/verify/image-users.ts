/** Users and programs as the image has them: what the agent did to /etc/passwd or to a PATH directory does not change who runs the tests, or with what. */
import { posix } from "node:path";
import type { ImageView } from "./image-view.ts";
import { DEFAULT_PATH } from "./protected-paths.ts";

export interface ImageUser {
  /** As an exec takes it: `uid:gid`, or the name when the image does not know it. */
  readonly exec: string;
  readonly home: string;
}

interface PasswdEntry {
  readonly name: string;
  readonly uid: string;
  readonly gid: string;
  readonly home: string;
}

/** `user` as an image or a task writes it: a name, a number, or with a group after a colon. Empty is root. */
export async function imageUser(image: ImageView, user: string): Promise<ImageUser> {
  const [who = "", group] = (user === "" ? "root" : user).split(":");
  const entries = await passwd(image);
  const entry = entries.find(({ name, uid }) => name === who || uid === who) ?? (who === "root" || who === "0" ? { name: "root", uid: "0", gid: "0", home: "/root" } : undefined);
  const home = entry?.home ?? "/";
  if (entry === undefined || group !== undefined) return { exec: user, home };
  return { exec: `${entry.uid}:${entry.gid}`, home };
}

/** Home directories that the image gives to root and to ordinary users. */
export async function imageHomes(image: ImageView): Promise<readonly string[]> {
  const homes = new Set(["/root"]);
  for (const { uid, home } of await passwd(image)) if ((uid === "0" || Number(uid) >= 1000) && home.startsWith("/") && !["/", "/nonexistent", "/dev/null"].includes(home)) homes.add(posix.normalize(home).replace(/\/$/, ""));
  return [...homes];
}

async function passwd(image: ImageView): Promise<readonly PasswdEntry[]> {
  const bytes = await image.read("/etc/passwd", 1024 * 1024);
  if (bytes === null) return [];
  return Buffer.from(bytes)
    .toString("utf8")
    .split("\n")
    .map((line) => line.split(":"))
    .filter((fields) => fields.length >= 6)
    .map(([name = "", , uid = "", gid = "", , home = ""]) => ({ name, uid, gid, home }));
}

/** How a script is started: the program and argument of its first line, as absolute paths of the image; bash, else sh, where it has none that exists. */
export async function scriptRunner(image: ImageView, script: Uint8Array, path: string): Promise<readonly string[]> {
  const first = /^\uFEFF?#!\s*([^\s]+)[ \t]*([^\r\n]*)/.exec(Buffer.from(script.subarray(0, 4096)).toString("utf8"));
  const program = first?.[1] ?? "";
  const rest = first?.[2]?.trim() ?? "";
  if (posix.basename(program) === "env") {
    const words = rest.replace(/^-S\s*/, "").split(/\s+/).filter((word) => word !== "");
    const found = words[0] === undefined ? null : await onPath(image, words[0], path);
    if (found !== null) return [found, ...words.slice(1)];
  } else if (program.startsWith("/") && (await image.real(program)) !== null) return rest === "" ? [program] : [program, rest];
  return [(await onPath(image, "bash", path)) ?? "/bin/sh"];
}

async function onPath(image: ImageView, name: string, path: string): Promise<string | null> {
  for (const directory of [...path.split(":"), ...DEFAULT_PATH.split(":")]) {
    if (!directory.startsWith("/")) continue;
    const candidate = posix.join(directory, name);
    if ((await image.real(candidate)) !== null) return candidate;
  }
  return null;
}

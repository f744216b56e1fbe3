/**
 * Identifiers: a kind prefix and 20 lower-case characters, sortable by creation time, safe as one DNS label, file name and cgroup name.
 *
 * Layout: 9 characters of base-32 milliseconds (good until the year 3084), 11 of randomness (55 bits).
 */
import type { Runtime } from "./runtime.ts";

declare const brand: unique symbol;
type Branded<Kind extends string> = string & { readonly [brand]: Kind };

export type RunId = Branded<"run">;
export type RolloutId = Branded<"ro">;
export type GroupId = Branded<"grp">;
export type SandboxId = Branded<"sbx">;
export type SnapshotId = Branded<"snap">;
export type ExecId = Branded<"ex">;
export type CallId = Branded<"call">;
export type SessionId = Branded<"ses">;
type TemplateId = Branded<"tpl">;

interface Kinds {
  run: RunId;
  ro: RolloutId;
  grp: GroupId;
  sbx: SandboxId;
  snap: SnapshotId;
  ex: ExecId;
  call: CallId;
  ses: SessionId;
  tpl: TemplateId;
}

/** Crockford's base 32: no i, l, o, u. */
const ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz";

export function newId<Kind extends keyof Kinds>(kind: Kind, runtime: Runtime): Kinds[Kind] {
  let time = Math.floor(runtime.now());
  let stamp = "";
  for (let i = 0; i < 9; i++) {
    stamp = ALPHABET.charAt(time % 32) + stamp;
    time = Math.floor(time / 32);
  }
  let tail = "";
  for (const byte of runtime.randomBytes(11)) tail += ALPHABET.charAt(byte & 31);
  // The only place where a plain string becomes an id of this kind.
  return `${kind}${stamp}${tail}` as Kinds[Kind];
}

/** Of the command of one tool call of a rollout, whoever asks for it. No `newId` is like it: it would be of the year 1970. */
export function execIdOf(call: number, index: number): ExecId {
  return `ex${String(call).padStart(9, "0")}${String(index).padStart(11, "0")}` as ExecId;
}

/** True for strings that `newId` could have made; the guard at every place where an id becomes part of a path. */
export function isId<Kind extends keyof Kinds>(kind: Kind, text: string): text is Kinds[Kind] {
  return text.startsWith(kind) && /^[0-9a-hjkmnp-tv-z]{20}$/.test(text.slice(kind.length));
}

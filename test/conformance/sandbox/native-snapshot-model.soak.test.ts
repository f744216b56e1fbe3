/**
 * Random sequences of file operations, snapshots, restores, forks, pauses and deletions, compared with a model: plain directories of the host on which the same operations
 * run, where a snapshot is `cp -a`.
 */
import { execFileSync } from "node:child_process";
import { chmodSync, mkdirSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import * as fc from "fast-check";
import { afterAll, beforeAll, expect, test } from "vitest";
import { openNativeBackend, type NativeBackend, type Sandbox, type SandboxSpec } from "../../../src/sandbox/index.ts";
import { leftoversAfter } from "../../support/leftovers.ts";
import { makeTestRoot, type TestRoot } from "../../support/rootfs.ts";
import { sh } from "./fixture.ts";

let base = "";
let home = "";
let image: TestRoot;
let backend: NativeBackend;
let copies = 0;

beforeAll(async () => {
  base = mkdtempSync(join(tmpdir(), "mw-model-"));
  chmodSync(base, 0o755);
  home = join(base, "home");
  image = makeTestRoot(base);
  // What lies below everything: files and directories that operations change, hide and replace.
  for (const name of ["a", "b", "c", "a/b", "a/b/c", "b/a"]) mkdirSync(join(image.directory, "m", name), { recursive: true });
  for (const name of ["a/x", "a/b/x", "a/b/c/x", "b/x", "x", "y"]) writeFileSync(join(image.directory, "m", name), `image ${name}\n`);
  backend = await openNativeBackend({ home, log: () => undefined });
});
afterAll(async () => {
  await backend.close();
  expect(await leftoversAfter(home)).toEqual([]);
  rmSync(base, { recursive: true, force: true });
});

/** Names collide often: most operations meet something. */
const name = fc.constantFrom("a", "b", "c", "x", "y", ".wh.x", "é n\nl");
const path = fc.array(name, { minLength: 1, maxLength: 3 }).map((names) => `'${names.join("/")}'`);
const operation = fc.oneof(
  fc.tuple(path, fc.nat(9)).map(([at, n]) => `echo ${n} > ${at}`),
  fc.tuple(path, fc.nat(9)).map(([at, n]) => `echo ${n} >> ${at}`),
  path.map((at) => `mkdir -p ${at}`),
  path.map((at) => `rm -rf ${at}`),
  path.map((at) => `rm -rf ${at}; mkdir ${at}; touch ${at}/new`),
  fc.tuple(path, path).map(([from, to]) => `[ -d ${from} ] || mv ${from} ${to}`),
  // A directory of the image cannot be renamed in an overlay, and programs copy it, each in its own way: those that are renamed here are new.
  fc.tuple(path, path).map(([from, to]) => `rm -rf ${to}; mkdir ${to}.new && { [ -d ${from} ] || mv ${from} ${to}.new/; }; mv ${to}.new ${to}`),
  fc.tuple(path, path).map(([from, to]) => `ln ${from} ${to}`),
  fc.tuple(path, path).map(([from, to]) => `rm -rf ${to}; ln -s ${from} ${to}`),
  fc.tuple(path, fc.constantFrom("700", "4711", "1777", "640")).map(([at, mode]) => `chmod ${mode} ${at}`),
  // A directory would be copied into itself without end.
  fc.tuple(path, path).map(([from, to]) => `[ -d ${from} ] || cp -a ${from} ${to}`),
  fc.tuple(path, fc.constantFrom(0, 5, 100_000)).map(([at, size]) => `truncate -s ${size} ${at}`),
  // Under a name that nobody writes to: without a reader that would wait.
  path.map((at) => `mkfifo ${at}.pipe`),
  fc.tuple(path, fc.constantFrom("1000:2000", "0:77", "65534:65534")).map(([at, owner]) => `chown -h ${owner} ${at}`),
  fc.tuple(path, fc.constantFrom("one", "two")).map(([at, value]) => `[ -h ${at} ] || probe setxattr ${at} user.note ${value}`),
  fc.tuple(path, fc.constantFrom("1000000000", "1234567890")).map(([at, time]) => `touch -c -h -d @${time} ${at}`),
  // What is there, a hole, data.
  path.map((at) => `[ -d ${at} ] || yes | head -c 8192 | dd of=${at} bs=4096 seek=300 conv=notrunc`),
);
type Step =
  | { readonly do: "files"; readonly script: string; readonly on: number }
  | { readonly do: "snapshot" | "pause" | "fork" | "restore" | "remove" | "kill" | "seal"; readonly on: number };
const step: fc.Arbitrary<Step> = fc.oneof(
  { weight: 5, arbitrary: fc.record({ do: fc.constant("files" as const), script: fc.array(operation, { minLength: 1, maxLength: 12 }).map((all) => all.map((one) => `{ ${one}; } 2>/dev/null`).join("\n")), on: fc.nat(7) }) },
  { weight: 5, arbitrary: fc.record({ do: fc.constantFrom("snapshot" as const, "snapshot" as const, "fork" as const, "pause" as const, "restore" as const, "remove" as const, "kill" as const, "seal" as const), on: fc.nat(7) }) },
);

/** Every path with type, owner, mode, size, target, content, attribute, and whether it has a hole; its time where an operation gave it one. */
const LOOK = `find . ! -name . -print0 | LC_ALL=C sort -z | while IFS= read -r -d '' f; do
  set -- $(stat -c '%Y %s %b' "$f"); case $1 in 1000000000|1234567890) ;; *) set -- now $2 $3;; esac
  if [ -L "$f" ]; then printf '%s -> %s %s\\n' "$f" "$(readlink "$f")" "$(stat -c %u:%g "$f") $1"
  elif [ -f "$f" ]; then printf '%s %s %s %s %s\\n' "$f" "$(stat -c '%a %u:%g %s %h' "$f") $1" "$(md5sum < "$f")" "$(probe getxattr "$f" user.note)" "$([ $2 -gt 1048576 ] && [ $(($3 * 512)) -lt $2 ] && echo sparse)"
  else printf '%s %s %s\\n' "$f" "$(stat -c '%a %u:%g %F' "$f") $1" "$([ -d "$f" ] && probe getxattr "$f" user.note)"; fi; done`;

/** What has to come up, for the comparison to be about it. */
const KINDS = ["1000:2000", "1000000000", " 6f6e65 ", " sparse", " 4711 ", " -> ", "fifo", ".wh.x"];
const seen = new Set<string>();

interface Pair {
  readonly sandbox: Sandbox;
  readonly model: string;
}

function inModel(directory: string, script: string): string {
  return execFileSync(join(image.directory, "bin/busybox"), ["sh", "-c", `cd '${directory}' && umask 022; ${script}\ntrue`], { encoding: "utf8", env: { PATH: join(image.directory, "bin") } });
}

function copyModel(from: string): string {
  const to = join(base, `model-${copies++}`);
  execFileSync("cp", ["-a", from, to]);
  return to;
}

async function same({ sandbox, model }: Pair, after: string): Promise<void> {
  const { out, err, code } = await sh(sandbox, `cd /m && ${LOOK}`);
  expect(code, err).toBe(0);
  expect(out, after).toBe(inModel(model, LOOK));
  for (const kind of KINDS) if (out.includes(kind)) seen.add(kind);
}

const ONE_OF_EACH = `mkdir begin; cd begin; echo 1 > f; chmod 4711 f; ln f g; ln -s f l; mkfifo p; touch .wh.x; chown 1000:2000 p; probe setxattr f user.note one
  yes | head -c 8192 | dd of=holes bs=4096 seek=300 2>/dev/null; touch -h -d @1000000000 f l`;

class World {
  readonly live: Pair[] = [];
  readonly kept: { readonly id: string; readonly model: string }[] = [];

  async start(): Promise<void> {
    this.live.push({ sandbox: await this.#create({}), model: copyModel(join(image.directory, "m")) });
    await this.take({ do: "files", script: ONE_OF_EACH, on: 0 });
  }

  async take(action: Step): Promise<void> {
    const at = action.on % this.live.length;
    const pair = this.live[at];
    if (pair === undefined) return;
    const { sandbox, model } = pair;
    switch (action.do) {
      case "files": {
        await sh(sandbox, `cd /m && umask 022; ${action.script}\ntrue`);
        inModel(model, action.script);
        return;
      }
      case "snapshot": {
        const { snapshot } = await sandbox.snapshot();
        this.kept.push({ id: snapshot.id, model: copyModel(model) });
        return;
      }
      case "pause": {
        await sandbox.pause();
        await sandbox.resume();
        return;
      }
      case "fork": {
        for (const result of await sandbox.fork(2)) {
          if (!result.ok) throw result.error;
          this.live.push({ sandbox: result.sandbox, model: copyModel(model) });
        }
        return;
      }
      case "restore": {
        const snapshot = this.kept[action.on % Math.max(1, this.kept.length)];
        if (snapshot !== undefined) this.live.push({ sandbox: await this.#create({ snapshot: snapshot.id }), model: copyModel(snapshot.model) });
        return;
      }
      case "remove": {
        const [gone] = this.kept.splice(action.on % Math.max(1, this.kept.length), 1);
        if (gone !== undefined) await backend.snapshots.remove(gone.id);
        return;
      }
      case "seal": {
        const workspace = await sandbox.seal();
        const verifying = await this.#create({ workspace });
        this.live[at] = { sandbox: verifying, model };
        await workspace.release();
        return;
      }
      case "kill": {
        if (this.live.length === 1) return;
        this.live.splice(at, 1);
        await sandbox.kill();
      }
    }
  }

  async end(): Promise<void> {
    await Promise.all(this.live.map(({ sandbox }) => sandbox.kill()));
    for (const { id } of this.kept) await backend.snapshots.remove(id);
  }

  #create(spec: Partial<SandboxSpec>): Promise<Sandbox> {
    return backend.create({ root: image.root, ...spec });
  }
}

test("any sequence of operations, snapshots, forks, pauses and deletions leaves what the model has", { timeout: 300_000 }, async () => {
  await fc.assert(
    fc.asyncProperty(fc.array(step, { minLength: 4, maxLength: 24 }), async (steps) => {
      const world = new World();
      try {
        await world.start();
        for (const [index, action] of steps.entries()) {
          if (world.live.length > 8 && (action.do === "fork" || action.do === "restore")) continue;
          await world.take(action);
          const told = `after step ${index} (${action.do})`;
          for (const pair of world.live) await same(pair, told);
        }
        for (const { id, model } of world.kept) {
          const sandbox = await backend.create({ root: image.root, snapshot: id });
          await same({ sandbox, model }, `restored at the end`);
          await sandbox.kill();
        }
      } finally {
        await world.end();
      }
    }),
    { numRuns: Number(process.env["MW_MODEL_RUNS"] ?? 10), seed: Number(process.env["MW_MODEL_SEED"] ?? 7), endOnFailure: process.env["MW_MODEL_RUNS"] === undefined, interruptAfterTimeLimit: 120_000 },
  );
  expect([...seen].toSorted()).toEqual(KINDS.toSorted());
  await backend.snapshots.collect();
  expect(await backend.snapshots.collect()).toEqual({ layers: 0, bytes: 0 });
});

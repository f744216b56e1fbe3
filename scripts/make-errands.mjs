// Makes worlds/errands: for each kind of entry and each pair of names a task. `node scripts/make-errands.mjs [DIRECTORY]`
import { mkdirSync, rmSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { ROOT } from "./toolchain.mjs";

const NAMES = ["amber", "cedar", "fjord", "heron", "jade", "lotus"];
const KINDS = [
  { kind: "file", say: "Create the empty files", command: "touch" },
  { kind: "directory", say: "Create the directories", command: "mkdir" },
  { kind: "pipe", say: "Create the named pipes", command: "mkfifo" },
];
/** Of each kind every fifth pair, another one for each kind, is never trained on. */
const HELD_OUT_EVERY = 5;

const target = process.argv[2] ?? join(ROOT, "worlds/errands");

const toml = (name) => `schema_version = "1.4"

[task]
name = "manyworlds/errands-${name}"
version = "1.0.0"
description = "One short command: make two entries of a kind, and nothing else."
keywords = ["shell", "toy"]

[metadata]
difficulty = "easy"
category = "shell"

[metadata.manyworlds]
family = "errands"

[agent]
timeout_sec = 60

[verifier]
timeout_sec = 60

[environment]
build_timeout_sec = 120
cpus = 1
memory_mb = 256
storage_mb = 256
network_mode = "no-network"
`;

const tests = (kind, first, second) => `#!/bin/sh
# Looks at what is in /app. Four things count: anything was made (0.1), all of it is of the right kind (0.2), what was named is there (0.15 each), and it is exactly that (0.4).
kind=${kind} first=${first} second=${second}
cd /app || exit 1
made=0 kinds=0 named=0 right=0
for entry in * .[!.]* ..?*; do
  if [ -L "$entry" ]; then is=link
  elif [ -d "$entry" ]; then is=directory
  elif [ -p "$entry" ]; then is=pipe
  elif [ -s "$entry" ]; then is=other
  elif [ -f "$entry" ]; then is=file
  elif [ -e "$entry" ]; then is=other
  else continue
  fi
  made=$((made + 1))
  [ $is = $kind ] && kinds=$((kinds + 1))
  case $entry in
    "$first" | "$second")
      named=$((named + 1))
      [ $is = $kind ] && right=$((right + 1))
      ;;
  esac
done
some=0 same=0 exact=0
[ $made -gt 0 ] && some=100 && [ $kinds -eq $made ] && same=200
names=$((150 * named))
[ $made -eq 2 ] && [ $right -eq 2 ] && exact=400
sum=$((some + same + names + exact))
echo "$made made, $kinds of them of the kind $kind, $named of them named $first or $second"
[ $sum -eq 1000 ] && reward=1 || reward=$(printf '0.%03d' $sum)
printf '{"reward": %s, "kind": 0.%03d, "names": 0.%03d, "exact": 0.%03d}\\n' $reward $same $names $exact > /logs/verifier/reward.json
`;

function write(directory, name, content, mode = 0o644) {
  mkdirSync(directory, { recursive: true });
  writeFileSync(join(directory, name), content, { mode });
}

for (const part of ["train", "held-out"]) rmSync(join(target, part), { recursive: true, force: true });
for (const [index, { kind, say, command }] of KINDS.entries()) {
  let pair = 0;
  for (const [at, one] of NAMES.entries()) {
    for (const other of NAMES.slice(at + 1)) {
      // Both orders occur.
      const [first, second] = pair % 2 === 0 ? [one, other] : [other, one];
      const directory = join(target, pair % HELD_OUT_EVERY === index ? "held-out" : "train", `${kind}-${first}-${second}`);
      write(directory, "task.toml", toml(`${kind}-${first}-${second}`));
      write(directory, "instruction.md", `${say} ${first} and ${second} in /app. Change nothing else.\n`);
      write(join(directory, "environment"), "Dockerfile", "FROM manyworlds/terminal\nWORKDIR /app\n");
      write(join(directory, "tests"), "test.sh", tests(kind, first, second), 0o755);
      write(join(directory, "solution"), "solve.sh", `#!/bin/sh\n${command} ${first} ${second}\n`, 0o755);
      pair++;
    }
  }
}

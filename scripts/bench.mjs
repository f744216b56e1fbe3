// Runs a bench: `npm run bench -- NAME [--json] [--quick]`. Installs the peers that it compares with, builds, then measures.
import { join } from "node:path";
import { ensurePrograms, ROOT, run } from "./toolchain.mjs";

const [name, ...rest] = process.argv.slice(2);
const NAMES = ["sandbox", "snapshot", "run", "gateway", "load", "delivery", "server"];
if (name === undefined || !NAMES.includes(name)) {
  process.stderr.write(`usage: npm run bench -- ${NAMES.join("|")} [--json] [--quick]\n`);
  process.exit(2);
}
if (name === "snapshot") ensurePrograms({ busybox: "busybox-static" });
if (name === "sandbox") ensurePrograms({ bwrap: "bubblewrap", crun: "crun", runc: "runc", busybox: "busybox-static" });
run(process.execPath, [join(ROOT, "scripts/build.mjs")], { stdoutToStderr: true });
run(process.execPath, ["--expose-gc", "--import", "tsx", join("bench", "index.ts"), name, ...rest]);

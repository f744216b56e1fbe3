// The test command: installs what tests need, builds, checks, then runs the suites. `--soak` runs the long ones, `--interop` those with software of others that is
// fetched for them. Further arguments go to vitest.
import { existsSync } from "node:fs";
import { join } from "node:path";
import { ROOT, ensurePrograms, run } from "./toolchain.mjs";

const SUITES = { "--soak": "MW_SOAK", "--interop": "MW_INTEROP" };
const suite = Object.keys(SUITES).find((name) => process.argv.includes(name));
const rest = process.argv.slice(2).filter((argument) => argument !== suite);
if (!existsSync(join(ROOT, "node_modules/vitest"))) run("npm", ["ci", "--no-fund", "--no-audit"]);
const missing = ensurePrograms({
  busybox: "busybox-static",
  mmdebstrap: "mmdebstrap",
  newuidmap: "uidmap",
  setpriv: "util-linux",
  slirp4netns: "slirp4netns",
  skopeo: "skopeo",
  "docker-registry": "docker-registry",
  zstd: "zstd",
  xz: "xz-utils",
  bzip2: "bzip2",
  umoci: "umoci",
  runc: "runc",
  crun: "crun",
  git: "git",
  python3: "python3",
  pip3: "python3-pip",
  chromium: "chromium",
  // Another kernel as a process, there for x86-64 alone.
  ...(suite === "--soak" && process.arch === "x64" ? { "linux.uml": "user-mode-linux" } : {}),
});
if (missing.length > 0 && process.env.CI !== undefined) process.exit(3);
run(process.execPath, [join(ROOT, "scripts/build.mjs")]);
// Before the tests, some of which ask for it: what it installs would change the image `host` under the others.
if (suite === "--soak") run(process.execPath, [join(ROOT, "scripts/build-criu.mjs")]);
if (suite === undefined && rest.length === 0) run(process.execPath, [join(ROOT, "scripts/check.mjs")]);
run(join(ROOT, "node_modules/.bin/vitest"), ["run", ...rest], { env: suite === undefined ? {} : { [SUITES[suite]]: "1" } });

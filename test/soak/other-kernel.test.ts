/** Machines on another kernel than this host's: Debian's User-Mode Linux (6.1 in Debian 12), pure cgroup v2. What it cannot have is refused or named, never wrong. */
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { writeTask } from "../support/tasks.ts";
import { boot, type Booted, cannotBoot, hasOtherKernel } from "../support/uml.ts";

const there = hasOtherKernel();
if (!there) process.stdout.write("no User-Mode Linux here (x86-64: apt-get install user-mode-linux): nothing of another kernel is tested\n");
it.runIf(process.env["CI"] === "true" && process.arch === "x64")("is installed", () => expect(there).toBe(true));

const place = mkdtempSync(join(tmpdir(), "mw-uml-"));
const unable = there ? await cannotBoot(place) : null;
if (unable !== null) process.stdout.write(`nothing of another kernel is tested: ${unable}\n`);
afterAll(() => rmSync(place, { recursive: true, force: true }));

interface Probe {
  readonly name: string;
  readonly state: string;
  readonly detail: string;
}

/** What an ordinary user and a container meet are set up as they find them. */
const job = (task: string): string => `
mw="node $CHECKOUT/dist/cli/main.js"
uname -r > $OUT/release
$mw doctor --json > $OUT/root.json
$mw sandbox run host --memory 256m --cpus 0.5 --pids 64 -- sh -c 'echo hi; id -u' > $OUT/hi
cp -r ${task} /mnt/task
$mw run /mnt/task --harness oracle -n 2 --json > $OUT/run.json
find $HOME -name '*.jsonl' -exec cat {} + > $OUT/events
find /sys/fs/cgroup -name 'manyworlds*' > $OUT/groups

echo "+memory +pids +cpu" > /sys/fs/cgroup/cgroup.subtree_control
mkdir /sys/fs/cgroup/container
cat > /mnt/inside.sh <<END
umount /sys/fs/cgroup
mount -t cgroup2 cgroup2 /sys/fs/cgroup
$mw doctor --json > $OUT/occupied.json
cat /sys/fs/cgroup/cgroup.type > $OUT/type
mkdir /sys/fs/cgroup/init; for p in \\$(cat /sys/fs/cgroup/cgroup.procs); do echo \\$p > /sys/fs/cgroup/init/cgroup.procs; done
$mw doctor --json > $OUT/vacated.json
END
sh -c 'echo $$ > /sys/fs/cgroup/container/cgroup.procs; exec unshare --cgroup --mount sh /mnt/inside.sh'

mount --bind $CHECKOUT /srv
cd /srv
mkdir -m 700 /mnt/user
chown 54322:54322 /mnt/user
sed '$amwuser:x:54322:54322::/mnt/user:/bin/sh' /etc/passwd > /mnt/passwd
mount --bind /mnt/passwd /etc/passwd
user="setpriv --reuid=54322 --regid=54322 --clear-groups env HOME=/mnt/user TMPDIR=/mnt/user XDG_RUNTIME_DIR=/mnt/user node /srv/dist/cli/main.js"
$user doctor --json > $OUT/user.json
$user run /mnt/task --harness oracle > $OUT/refused 2>&1
echo $? >> $OUT/refused
exit 0
`;

describe.runIf(there && unable === null)("a kernel of another version with pure cgroup v2", () => {
  let booted: Booted;
  const probes = (name: string): readonly Probe[] => {
    const text = booted.read(`${name}.json`);
    if (text === "") throw new Error(`${name}: nothing was said\n${booted.log}`);
    return (JSON.parse(text) as { probes: Probe[] }).probes;
  };
  const state = (name: string, probe: string): Probe | undefined => probes(name).find((one) => one.name === probe);
  const before = (major: number, minor: number): boolean => {
    const [ours = 0, less = 0] = booted.read("release").split(".").map(Number);
    return ours < major || (ours === major && less < minor);
  };

  beforeAll(async () => {
    booted = await boot(place, job(writeTask(join(place, "task"))));
  }, 1_800_000);

  it("comes up, and a machine runs", () => {
    expect(booted.code, booted.log).toBe(0);
    expect(booted.read("hi"), booted.log).toBe("hi\n0\n");
  });

  it("has every limit, and says when machines have no user ids of their own", () => {
    const wrong = probes("root").filter(({ name, state: found }) => (name.endsWith(" limits") || name === "freeze") && found !== "ok");
    expect(wrong).toEqual([]);
    expect(state("root", "own user ids")).toMatchObject(before(6, 3) ? { state: "absent", detail: expect.stringContaining("Linux 6.3") } : { state: "ok" });
  });

  it("scores rollouts, records the isolation that they had, and leaves no control group", () => {
    expect(JSON.parse(booted.read("run.json"))).toMatchObject({ outcomes: { scored: 2 }, rollouts: [{ reward: 1 }, { reward: 1 }] });
    expect(booted.read("events")).toContain(`"profile":"${before(6, 3) ? "namespaces" : "userns"}"`);
    expect(booted.read("groups")).toBe("");
  });

  it("where the top group holds processes, as in a container: limits are absent, the group is left as it is, the remedy helps", () => {
    expect(state("occupied", "memory limits")).toMatchObject({ state: "absent", detail: expect.stringContaining("holds processes") });
    expect(state("occupied", "freeze")).toMatchObject({ state: "ok" });
    expect(booted.read("type")).toBe("domain\n");
    // Each runtime that is installed here.
    for (const { detail } of probes("occupied").filter(({ name }) => name.startsWith("backend oci:"))) expect(detail).toContain("holds processes");
    for (const limit of ["memory", "pids", "cpu"]) expect(state("vacated", `${limit} limits`)).toMatchObject({ state: "ok" });
  });

  it("an ordinary user is refused where directories could not be moved inside, and told what to do", () => {
    if (before(6, 6)) {
      expect(state("user", "backend")).toMatchObject({ state: "failed", detail: expect.stringContaining("Linux 6.6") });
      expect(booted.read("refused")).toMatch(/run mw as root[\s\S]*\n3\n$/);
    } else expect(state("user", "backend")).toMatchObject({ state: "ok" });
  });

  it("passes the sandbox suite as root", async () => {
    const suite = await boot(place, "exec node node_modules/vitest/vitest.mjs run --configLoader runner --reporter=json --outputFile=$OUT/report.json test/conformance/sandbox/native.test.ts test/conformance/sandbox/native-host.test.ts");
    const text = suite.read("report.json");
    if (text === "") throw new Error(suite.log);
    const report = JSON.parse(text) as { numPassedTests: number; testResults: { message: string; assertionResults: { status: string; fullName: string; failureMessages: string[] }[] }[] };
    // For whoever reads the record of a run: how many of the suites' tests there were.
    process.stdout.write(`Linux ${booted.read("release").trim()}: ${report.numPassedTests} tests of the sandbox suites pass\n`);
    const failed = report.testResults.flatMap(({ message, assertionResults }) => [message, ...assertionResults.filter((one) => one.status === "failed").map((one) => `${one.fullName}: ${one.failureMessages.join("\n").slice(0, 500)}`)]);
    expect(failed.filter((one) => one !== "")).toEqual([]);
    expect(report.numPassedTests).toBeGreaterThan(145);
  }, 3_600_000);
});

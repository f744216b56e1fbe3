/** Networks of tasks phase by phase, hosts that a run adds, ports of a machine on this host: as a user of the CLI meets them. */
import { spawn } from "node:child_process";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { createServer } from "node:http";
import { connect, type AddressInfo } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { afterAll, beforeAll, expect, test } from "vitest";
import { mw } from "../support/cli.ts";
import { makeTestRoot, type TestRoot } from "../support/rootfs.ts";
import { writeTask } from "../support/tasks.ts";
import { mortal } from "../support/mortal.ts";

const MAIN = fileURLToPath(new URL("../../dist/cli/main.js", import.meta.url));
const place = mkdtempSync(join(tmpdir(), "mw-task-network-"));
const env = { MW_HOME: join(place, "home") };
const asked: string[] = [];
const server = createServer((request, response) => {
  asked.push(request.url ?? "");
  response.end("from outside");
});
let port = 0;
let image: TestRoot;

beforeAll(async () => {
  image = makeTestRoot(place);
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  port = (server.address() as AddressInfo).port;
});
afterAll(() => {
  server.close();
  rmSync(place, { recursive: true, force: true });
});

const ask = (path: string): string => `timeout 50 wget -q -O - http://localhost:${port}/${path} 2>&1`;

interface Rollout {
  readonly outcome: string;
  readonly reward: number | null;
  readonly timeline: readonly { readonly event: string; readonly detail: string }[];
  readonly verdict: { readonly evidence: { readonly notes: readonly string[] } };
}

async function rolloutOf(...args: string[]): Promise<Rollout> {
  const { code, stdout, stderr } = await mw(["run", ...args, "--image", `dir:${image.directory}`, "--harness", "oracle", "--json", "--quiet"], { env });
  expect(code, stderr).toBe(0);
  const [rollout] = (JSON.parse(stdout) as { readonly rollouts: readonly { readonly rollout: string }[] }).rollouts;
  return JSON.parse((await mw(["show", rollout?.rollout ?? "", "--json"], { env })).stdout) as Rollout;
}

const detail = ({ timeline }: Rollout, event: string): string => timeline.find((entry) => entry.event === event)?.detail ?? "";

test("the agent's list and the verifier's are each their own, what is refused is in the record, and a run adds hosts", async () => {
  const task = writeTask(join(place, "phases"), {
    solve: `mkdir -p /work; { ${ask("agent")}; wget -q -O - http://elsewhere.test/; } > /work/out 2>&1; true`,
    test: `if grep -q "from outside" /work/out && [ -z "$HTTP_PROXY" ]; then echo 1; else echo 0; fi > /logs/verifier/reward.txt`,
  });
  writeFileSync(join(task, "task.toml"), '[environment]\ndocker_image = "x"\nnetwork_mode = "no-network"\n[agent]\ntimeout_sec = 60\nnetwork_mode = "allowlist"\nallowed_hosts = ["listed.test"]\n[verifier]\nnetwork_mode = "no-network"\n');

  const without = await rolloutOf(task);
  expect(without).toMatchObject({ outcome: "scored", reward: 0 });
  expect(detail(without, "leased")).toContain("network=allowlist");
  expect(detail(without, "running")).toContain('allow=["listed.test"]');
  expect(detail(without, "ended")).toContain(`"host":"localhost","port":${port},"reason":"not_allowed"`);
  expect(detail(without, "verified")).toContain("network=none");
  expect(asked).toEqual([]);

  // The verifier has the added hosts too, and with them the proxy's variables.
  const added = await rolloutOf(task, "--allow", `localhost:${port}`, "--allow", `127.0.0.1:${port}`);
  expect(added).toMatchObject({ outcome: "scored", reward: 0 });
  expect(detail(added, "leased")).toContain("networkDeclared=allowlist listed.test");
  expect(detail(added, "running")).toContain(`allow=["listed.test","localhost:${port}","127.0.0.1:${port}"]`);
  expect(detail(added, "ended")).toContain('"refusals":[{"host":"elsewhere.test","port":80,"reason":"not_allowed","count":1}]');
  expect(detail(added, "verified")).toContain(`network=allowlist localhost:${port}`);
  expect(asked).toEqual(["/agent"]);
});

test("ports that a task does not name are those of the web, also for tests in the agent's machine", async () => {
  const task = writeTask(join(place, "in-place"), {
    solve: `mkdir -p /work; ${ask("first")} > /work/out; true`,
    test: `${ask("tests")} > /tmp/seen; if grep -q "from outside" /work/out && grep -q 403 /tmp/seen; then echo 1; else echo 0; fi > /logs/verifier/reward.txt`,
  });
  writeFileSync(join(task, "task.toml"), `[environment]\ndocker_image = "x"\nnetwork_mode = "no-network"\n[agent]\ntimeout_sec = 60\nnetwork_mode = "allowlist"\nallowed_hosts = ["localhost", "127.0.0.1"]\n[verifier]\nnetwork_mode = "allowlist"\nallowed_hosts = ["other.test"]\n[metadata.manyworlds]\nsurvivors = ["/bin/nothing"]\n`);
  asked.length = 0;
  // Ports of tasks are those of the web: the agent is refused here as well.
  expect(await rolloutOf(task)).toMatchObject({ outcome: "scored", reward: 0 });
  expect(asked).toEqual([]);
});

test("bad lists are told where they are", async () => {
  const task = writeTask(join(place, "easy"));
  expect(await mw(["run", task, "--allow", "http://x"], { env })).toMatchObject({ code: 2, stderr: expect.stringMatching(/is a URL[\s\S]*fix: write example\.com/) });
  expect(await mw(["run", task, "--allow", "x.test", "--network", "none"], { env })).toMatchObject({ code: 2, stderr: expect.stringContaining("--allow is given, but the network of every machine is none") });
  expect(await mw(["sandbox", "run", "host", "--publish", "99999", "--", "true"], { env })).toMatchObject({ code: 2, stderr: expect.stringContaining("HOSTPORT:PORT") });
});

function held(...inputs: string[]): Promise<{ readonly document: { readonly sandbox: string; readonly published?: readonly { readonly address: string; readonly host_port: number; readonly port: number }[] }; readonly end: () => Promise<number | null>; readonly errors: () => string }> {
  const holder = mortal(spawn(process.execPath, [MAIN, "sandbox", "create", "--json", ...inputs, `dir:${image.directory}`], { env: { PATH: process.env["PATH"], HOME: place, ...env }, stdio: ["ignore", "pipe", "pipe"] }));
  let [out, err] = ["", ""];
  holder.stderr.on("data", (data: Buffer) => (err += data.toString()));
  const ended = new Promise<number | null>((resolve) => holder.once("exit", resolve));
  const end = (): Promise<number | null> => {
    holder.kill("SIGTERM");
    return ended;
  };
  return new Promise((resolve, reject) => {
    holder.stdout.on("data", (data: Buffer) => {
      out += data.toString();
      if (out.includes("\n")) resolve({ document: JSON.parse(out) as Awaited<ReturnType<typeof held>>["document"], end, errors: () => err });
    });
    holder.once("exit", (code) => reject(new Error(`create ended with ${code}: ${err}`)));
  });
}

async function reach(hostPort: number, text = ""): Promise<string> {
  const socket = connect(hostPort, "127.0.0.1");
  let got = "";
  socket.on("data", (chunk: Buffer) => (got += chunk.toString()));
  socket.end(text);
  await new Promise((resolve) => socket.once("close", resolve).on("error", resolve));
  return got;
}

test("a held machine's list is shown and changed, its refusals are told as they happen, its ports are on this host until it ends", async () => {
  const { document, end, errors } = await held("--allow", "listed.test", "--publish", "7000");
  const { sandbox } = document;
  const network = async (...more: string[]): Promise<{ network: string; egress: { allow: string[]; refused: number; refusals: { host: string; count: number }[] } }> => JSON.parse((await mw(["sandbox", "network", sandbox, "--json", ...more], { env })).stdout) as Awaited<ReturnType<typeof network>>;
  const exec = (command: string): ReturnType<typeof mw> => mw(["sandbox", "exec", sandbox, "--json", "--", "sh", "-c", command], { env });
  expect((JSON.parse((await exec(ask("x"))).stdout) as { stdout: string }).stdout).toContain("403");
  await expect.poll(errors, { timeout: 60_000 }).toContain(`network: localhost:${port} is not in the list of allowed hosts`);
  expect(await network()).toMatchObject({ network: "allowlist", egress: { allow: ["listed.test"], refused: 1, refusals: [{ host: "localhost", count: 1 }] } });
  await network("--allow", `localhost:${port}`, "--allow", `127.0.0.1:${port}`);
  expect((JSON.parse((await exec(ask("y"))).stdout) as { stdout: string }).stdout).toBe("from outside");
  expect((await network("--forget", `localhost:${port}`)).egress.allow).toEqual(["listed.test", `127.0.0.1:${port}`]);
  expect((JSON.parse((await exec(ask("z"))).stdout) as { stdout: string }).stdout).toContain("403");
  expect((await mw(["sandbox", "network", sandbox], { env })).stdout).toMatch(/network allowlist\nallowed listed\.test .*\n1 connections, .* 2 refused\nREFUSED +HOST +WHY\n/);

  const [published] = document.published ?? [];
  expect(published).toMatchObject({ address: "127.0.0.1", port: 7000 });
  const hostPort = published?.host_port ?? 0;
  // Nothing listens inside yet.
  expect(await reach(hostPort)).toBe("");
  await exec("(while true; do echo hello from inside | nc -l -p 7000; done) > /dev/null 2>&1 &");
  let got = "";
  for (let tries = 0; got === "" && tries < 600; tries++) {
    got = await reach(hostPort);
    if (got === "") await new Promise((resolve) => setTimeout(resolve, 100));
  }
  expect(got).toBe("hello from inside\n");
  const taken = await mw(["sandbox", "run", "--publish", `${hostPort}:80`, `dir:${image.directory}`, "--", "true"], { env });
  expect(taken).toMatchObject({ code: 2, stderr: expect.stringMatching(/cannot listen on 127\.0\.0\.1 port \d+[\s\S]*fix: give another port/) });
  await end();
  await expect(reach(hostPort)).resolves.toBe("");
});

/** What unmodified clients of the E2B protocol do, each version the same. */
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { request } from "node:http";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, beforeAll, describe, expect, it } from "vitest";

/** The parts of the SDK that the suite uses; both versions have them. */
export type Sdk = Pick<typeof import("e2b"), "Sandbox" | "Template" | "waitForFile" | "CommandExitError" | "FileNotFoundError" | "SandboxNotFoundError" | "AuthenticationError" | "TimeoutError" | "RateLimitError" | "BuildError" | "InvalidArgumentError">;

export interface SuiteOptions {
  readonly version: string;
  readonly sdk: Sdk;
  readonly server: () => { readonly url: string; readonly port: number };
  readonly key: string;
}

type Client = InstanceType<Sdk["Sandbox"]>;

export function e2bSuite({ version, sdk, server, key }: SuiteOptions): void {
  const options = (): { apiKey: string; apiUrl: string; sandboxUrl: string; requestTimeoutMs: number } => ({ apiKey: key, apiUrl: server().url, sandboxUrl: server().url, requestTimeoutMs: 120_000 });
  const { Sandbox, Template } = sdk;

  describe(`e2b ${version}`, () => {
    let sandbox: Client;
    beforeAll(async () => {
      sandbox = await Sandbox.create("host", { ...options(), timeoutMs: 600_000, metadata: { suite: version, odd: "a b/c=ü&" }, envs: { FROM_CREATE: "yes" } });
    });
    afterAll(async () => {
      await sandbox.kill();
    });

    it("says what it is", async () => {
      expect(sandbox.sandboxId).toMatch(/^sbx[0-9a-z]{20}$/);
      expect(await sandbox.isRunning()).toBe(true);
      const info = await sandbox.getInfo();
      expect(info).toMatchObject({ sandboxId: sandbox.sandboxId, templateId: "host", state: "running", metadata: { suite: version, odd: "a b/c=ü&" } });
      expect(info.endAt.getTime() - info.startedAt.getTime()).toBe(600_000);
      expect(sandbox.getHost(3000)).toBe(`3000-${sandbox.sandboxId}.localhost:${server().port}`);
    });

    it("runs commands: output, exit codes, environment, directory, user", async () => {
      const seen: string[] = [];
      const result = await sandbox.commands.run("echo out; echo err >&2; echo $FROM_CREATE $MORE; pwd", { envs: { MORE: "here" }, cwd: "/tmp", onStdout: (text) => void seen.push(text) });
      expect(result).toMatchObject({ exitCode: 0, stdout: "out\nyes here\n/tmp\n", stderr: "err\n" });
      expect(seen.join("")).toBe(result.stdout);
      const failed = await sandbox.commands.run("echo no; exit 7").catch((error: unknown) => error);
      expect(failed).toBeInstanceOf(sdk.CommandExitError);
      expect(failed).toMatchObject({ exitCode: 7, stdout: "no\n" });
      expect((await sandbox.commands.run("whoami; echo $HOME", { user: "root" })).stdout).toBe("root\n/root\n");
      await expect(sandbox.commands.run("true", { user: "nobody-of-that-name" })).rejects.toBeInstanceOf(sdk.InvalidArgumentError);
      await expect(sandbox.commands.run("true", { cwd: "/no/such/place" })).rejects.toBeInstanceOf(sdk.InvalidArgumentError);
      const killed = await sandbox.commands.run("kill -9 $$").catch((error: unknown) => error);
      expect(killed).toBeInstanceOf(sdk.CommandExitError);
      const big = await sandbox.commands.run("head -c 3000000 /dev/zero | tr '\\0' x", { timeoutMs: 120_000 });
      expect(big.stdout.length).toBe(3_000_000);
      const unicode = await sandbox.commands.run("for i in $(seq 20000); do printf 'ü北'; done");
      expect(unicode.stdout).toBe("ü北".repeat(20_000));
    });

    it("ends a command at its deadline, and at a kill", async () => {
      await expect(sandbox.commands.run("sleep 321", { timeoutMs: 1500 })).rejects.toBeInstanceOf(sdk.TimeoutError);
      const command = await sandbox.commands.run("sleep 322", { background: true, timeoutMs: 0 });
      expect((await sandbox.commands.list()).find(({ pid }) => pid === command.pid)).toMatchObject({ cmd: "/bin/bash", args: ["-l", "-c", "sleep 322"] });
      expect(await command.kill()).toBe(true);
      await expect(command.wait()).rejects.toBeInstanceOf(sdk.CommandExitError);
      expect(await sandbox.commands.kill(command.pid)).toBe(false);
      await expect.poll(async () => (await sandbox.commands.list()).length, { timeout: 60_000 }).toBe(0);
      expect((await sandbox.commands.run("pgrep -fx 'sleep 32[12]' || echo none")).stdout).toBe("none\n");
    });

    it("keeps a command in the background, fed, left and found again", async () => {
      const command = await sandbox.commands.run("while read line; do echo got $line; done; echo end", { background: true, stdin: true, timeoutMs: 0 });
      await sandbox.commands.sendStdin(command.pid, "one\n");
      await expect.poll(() => command.stdout, { timeout: 60_000 }).toBe("got one\n");
      await command.disconnect();
      const again = await sandbox.commands.connect(command.pid, { timeoutMs: 0 });
      await sandbox.commands.sendStdin(command.pid, "two\n");
      await expect.poll(() => again.stdout, { timeout: 60_000 }).toBe("got two\n");
      await sandbox.commands.closeStdin(command.pid);
      expect(await again.wait()).toMatchObject({ exitCode: 0, stdout: "got two\nend\n" });
      // How it ended is kept for those who come later.
      expect(await (await sandbox.commands.connect(command.pid)).wait()).toMatchObject({ exitCode: 0 });
      await expect(sandbox.commands.connect(999_999)).rejects.toThrow(/not_found|no process/);
      await expect(sandbox.commands.sendStdin(999_999, "x")).rejects.toThrow(/no process/);
    });

    it("has terminals", async () => {
      let text = "";
      const terminal = await sandbox.pty.create({ cols: 91, rows: 33, timeoutMs: 0, onData: (data) => void (text += Buffer.from(data).toString()) });
      await sandbox.pty.sendInput(terminal.pid, new TextEncoder().encode("stty size; echo $TERM\n"));
      await expect.poll(() => text, { timeout: 60_000 }).toMatch(/33 91\r\n[\s\S]*xterm/);
      await sandbox.pty.resize(terminal.pid, { cols: 60, rows: 20 });
      await sandbox.pty.sendInput(terminal.pid, new TextEncoder().encode("stty size\n"));
      await expect.poll(() => text, { timeout: 60_000 }).toContain("20 60");
      expect(await sandbox.pty.kill(terminal.pid)).toBe(true);
      await expect(terminal.wait()).rejects.toBeInstanceOf(sdk.CommandExitError);
    });

    it("moves files: text, bytes, many, large, nested, missing", async () => {
      const bytes = Uint8Array.from({ length: 2_000_000 }, (_, index) => (index * 31) & 255);
      expect(await sandbox.files.write("/data/deep/file.txt", "hello ü")).toMatchObject({ path: "/data/deep/file.txt", name: "file.txt", type: "file" });
      expect(await sandbox.files.read("/data/deep/file.txt")).toBe("hello ü");
      await sandbox.files.write("/data/bytes", new Blob([bytes]));
      expect(Buffer.from(await sandbox.files.read("/data/bytes", { format: "bytes" })).equals(Buffer.from(bytes))).toBe(true);
      const stream = await sandbox.files.read("/data/bytes", { format: "stream" });
      let streamed = 0;
      for await (const part of stream as unknown as AsyncIterable<Uint8Array>) streamed += part.length;
      expect(streamed).toBe(bytes.length);
      await sandbox.files.write("/data/empty", "");
      expect(await sandbox.files.read("/data/empty")).toBe("");
      expect((await sandbox.files.read("/data/empty", { format: "bytes" })).length).toBe(0);
      const many = await sandbox.files.write(Array.from({ length: 20 }, (_, index) => ({ path: `/data/many/ü ${index}.txt`, data: `content ${index}` })));
      expect(many.map(({ path }) => path)).toEqual(Array.from({ length: 20 }, (_, index) => `/data/many/ü ${index}.txt`));
      expect(await sandbox.files.read("/data/many/ü 13.txt")).toBe("content 13");
      await sandbox.files.write("/data/streamed", new ReadableStream({
        start: (controller) => {
          for (let at = 0; at < 20; at++) controller.enqueue(new Uint8Array(50_000).fill(at));
          controller.close();
        },
      }));
      expect((await sandbox.files.getInfo("/data/streamed")).size).toBe(1_000_000);
      await expect(sandbox.files.read("/data/none")).rejects.toBeInstanceOf(sdk.FileNotFoundError);
      await expect(sandbox.files.read("/data")).rejects.toThrow(/directory/);
      // Relative paths begin at home.
      await sandbox.files.write("at-home", "x");
      expect((await sandbox.commands.run("cat ~/at-home")).stdout).toBe("x");
    });

    it("lists, describes, makes, moves and removes", async () => {
      expect(await sandbox.files.makeDir("/tree/a/b")).toBe(true);
      expect(await sandbox.files.makeDir("/tree/a/b")).toBe(false);
      await sandbox.files.write("/tree/a/f", "12345");
      await sandbox.commands.run("chmod 640 /tree/a/f; ln -s a/f /tree/link; ln -s nowhere /tree/dangling");
      expect((await sandbox.files.list("/tree")).map(({ name, type }) => [name, type]).toSorted()).toEqual([["a", "dir"], ["link", "file"]]);
      expect((await sandbox.files.list("/tree", { depth: 3 })).map(({ path }) => path)).toEqual(["/tree/a", "/tree/a/b", "/tree/a/f", "/tree/link"]);
      expect(await sandbox.files.getInfo("/tree/a/f")).toMatchObject({ name: "f", type: "file", path: "/tree/a/f", size: 5, mode: 0o640, permissions: "-rw-r-----", owner: "root", group: "root" });
      expect(await sandbox.files.getInfo("/tree/link")).toMatchObject({ type: "file", symlinkTarget: "/tree/a/f" });
      expect(await sandbox.files.exists("/tree/a/f")).toBe(true);
      expect(await sandbox.files.rename("/tree/a/f", "/tree/new/g")).toMatchObject({ path: "/tree/new/g", type: "file" });
      expect(await sandbox.files.exists("/tree/a/f")).toBe(false);
      await sandbox.files.remove("/tree/new");
      expect(await sandbox.files.exists("/tree/new/g")).toBe(false);
      await expect(sandbox.files.list("/none")).rejects.toBeInstanceOf(sdk.FileNotFoundError);
      await expect(sandbox.files.rename("/none", "/x")).rejects.toBeInstanceOf(sdk.FileNotFoundError);
      await expect(sandbox.files.getInfo("/none")).rejects.toBeInstanceOf(sdk.FileNotFoundError);
    });

    it("watches directories", async () => {
      await sandbox.files.makeDir("/watched/sub");
      const events: string[] = [];
      const handle = await sandbox.files.watchDir("/watched", (event) => void events.push(`${event.type} ${event.name}`), { recursive: true, timeoutMs: 0 });
      await sandbox.files.write("/watched/sub/new", "x");
      await sandbox.commands.run("echo more >> /watched/sub/new; rm /watched/sub/new");
      await expect.poll(() => events, { timeout: 60_000 }).toEqual(expect.arrayContaining(["write sub/new", "remove sub/new"]));
      // What is uploaded is seen under its own name alone, whole.
      expect(events.slice(0, 3)).toEqual(["create sub/new", "write sub/new", "chmod sub/new"]);
      await sandbox.commands.run("echo 1 > /watched/a; sleep 0.2; chmod 600 /watched/a; mv /watched/a /watched/b");
      await expect.poll(() => events, { timeout: 60_000 }).toEqual(expect.arrayContaining(["chmod a", "rename a", "create b"]));
      await handle.stop();
      const entries: unknown[] = [];
      const told = await sandbox.files.watchDir("/watched", (event) => void entries.push([event.type, event.entry?.path, event.entry?.size]), { includeEntry: true, allowNetworkMounts: true, timeoutMs: 0 });
      await sandbox.files.write("/watched/with-entry", "12345");
      await expect.poll(() => entries, { timeout: 60_000 }).toContainEqual(["write", "/watched/with-entry", 5]);
      await told.stop();
      await expect(sandbox.files.watchDir("/none", () => undefined)).rejects.toBeInstanceOf(sdk.FileNotFoundError);
    });

    it("lets files carry metadata", async () => {
      const metadata = { author: "somebody", purpose: "a b=c" };
      expect(await sandbox.files.write("/meta/f", "x", { metadata })).toMatchObject({ path: "/meta/f", metadata });
      expect((await sandbox.files.getInfo("/meta/f")).metadata).toEqual(metadata);
      expect((await sandbox.files.list("/meta")).map((entry) => entry.metadata)).toEqual([metadata]);
      expect((await sandbox.files.rename("/meta/f", "/meta/g")).metadata).toEqual(metadata);
      await sandbox.commands.run("python3 -c 'import os; os.setxattr(\"/meta/g\", \"user.e2b.late\", b\"yes\"); os.setxattr(\"/meta/g\", \"user.other\", b\"no\")'");
      expect((await sandbox.files.getInfo("/meta/g")).metadata).toEqual({ ...metadata, late: "yes" });
      // They go with the file that had them.
      await sandbox.files.write("/meta/g", "y");
      expect((await sandbox.files.getInfo("/meta/g")).metadata ?? {}).toEqual({});
      await expect(sandbox.files.write("/meta/h", "x", { metadata: { much: "x".repeat(5000) } })).rejects.toThrow("attributes");
      expect(await sandbox.files.exists("/meta/h")).toBe(false);
    });

    it("reads what the kernel makes up, and gives the directories that it makes to who asked for them", async () => {
      expect((await sandbox.files.read("/proc/sys/kernel/ostype")).trim()).toBe("Linux");
      expect((await sandbox.files.read("/proc/self/status")).length).toBeGreaterThan(500);
      await sandbox.files.write("/tmp/of-nobody/deep/er/f", "x", { user: "nobody" });
      expect((await sandbox.commands.run("stat -c %U /tmp/of-nobody /tmp/of-nobody/deep /tmp/of-nobody/deep/er /tmp/of-nobody/deep/er/f")).stdout).toBe("nobody\n".repeat(4));
    });

    it("says of a command whose sandbox was killed what happened", async () => {
      const doomed = await Sandbox.create("host", options());
      const command = await doomed.commands.run("sleep 600", { background: true });
      const waiting = command.wait().catch((error: unknown) => error);
      await doomed.kill();
      const error = await waiting;
      expect(error).toBeInstanceOf(sdk.TimeoutError);
      expect(String(error)).toContain("was killed or reached its end of life");
    });

    it("signs addresses for others", async () => {
      await sandbox.files.write("/signed/ü file", "for you");
      const url = await sandbox.downloadUrl("/signed/ü file", { useSignatureExpiration: 600 });
      expect(await (await fetch(url)).text()).toBe("for you");
      expect((await fetch(url.replace("signature=v1_", "signature=v1_A"))).status).toBe(401);
      expect((await fetch(url.replace("%2Fsigned%2F", "%2Fetc%2F"))).status).toBe(401);
      expect((await fetch(await sandbox.downloadUrl("/signed/ü file", { useSignatureExpiration: -10 }))).status).toBe(401);
      const form = new FormData();
      form.append("file", new Blob(["uploaded"]), "whatever");
      expect((await fetch(await sandbox.uploadUrl("/signed/up"), { method: "POST", body: form })).status).toBe(200);
      expect(await sandbox.files.read("/signed/up")).toBe("uploaded");
      const nameless = new FormData();
      nameless.append("file", "x".repeat(10_000));
      expect(await (await fetch(await sandbox.uploadUrl("/signed/nameless"), { method: "POST", body: nameless })).json()).toEqual([{ path: "/signed/nameless", name: "nameless", type: "file" }]);
      expect((await sandbox.files.read("/signed/nameless")).length).toBe(10_000);
      // A right to read is none to write.
      expect((await fetch(await sandbox.downloadUrl("/signed/up"), { method: "POST", body: form })).status).toBe(401);
    });

    it("reaches servers inside, by header and by host name", async () => {
      const script = "require('http').createServer((q,s)=>{let n=0;q.on('data',d=>n+=d.length);q.on('end',()=>s.end(q.method+' '+q.url+' '+n+' '+q.headers.host))}).listen(8123,'127.0.0.1',()=>require('fs').writeFileSync('/tmp/up',''))";
      const running = await sandbox.commands.run(`node -e "${script}"`, { background: true, timeoutMs: 0 });
      await expect.poll(() => sandbox.files.exists("/tmp/up"), { timeout: 60_000 }).toBe(true);
      const host = sandbox.getHost(8123);
      expect(await ask(server().port, "/path?q=1", { host })).toEqual([200, `GET /path?q=1 0 ${host}`]);
      expect(await ask(server().port, "/", { "e2b-sandbox-id": sandbox.sandboxId, "e2b-sandbox-port": "8123" }, Buffer.alloc(3_000_000))).toEqual([200, expect.stringContaining("POST / 3000000 ")]);
      expect((await ask(server().port, "/", { host: sandbox.getHost(8124) }))[0]).toBe(502);
      await running.kill();
    });

    it("counts, and tells what was done", async () => {
      const [last] = (await sandbox.getMetrics()).slice(-1);
      expect(last).toMatchObject({ cpuCount: expect.any(Number) as number, memTotal: expect.any(Number) as number });
      expect(last?.memTotal).toBeGreaterThan(0);
      const logs = (await (await fetch(`${server().url}/v2/sandboxes/${sandbox.sandboxId}/logs?search=started`, { headers: { "x-api-key": key } })).json()) as { logs: { message: string }[] };
      expect(logs.logs[0]?.message).toBe("started /bin/bash");
    });

    it("is found by metadata and state, in pages, newest first", async () => {
      const group = `pages-${version}`;
      const made: Client[] = [];
      for (let at = 0; at < 3; at++) made.push(await Sandbox.create("host", { ...options(), metadata: { group, value: "a b%2Fü&=" } }));
      const pages = Sandbox.list({ ...options(), query: { metadata: { group, value: "a b%2Fü&=" }, state: ["running"] }, limit: 2 });
      const ids: string[][] = [];
      while (pages.hasNext) ids.push((await pages.nextItems()).map(({ sandboxId }) => sandboxId));
      expect(ids).toEqual([[made[2]?.sandboxId, made[1]?.sandboxId], [made[0]?.sandboxId]]);
      const none = Sandbox.list({ ...options(), query: { metadata: { group, value: "other" } } });
      expect(await none.nextItems()).toEqual([]);
      await Promise.all(made.map((each) => each.kill()));
    });

    it("lives as long as it is told", async () => {
      const short = await Sandbox.create("host", { ...options(), timeoutMs: 2000 });
      await expect.poll(() => short.isRunning(), { timeout: 60_000 }).toBe(false);
      expect(await short.kill()).toBe(false);
      await expect(short.setTimeout(1000)).rejects.toBeInstanceOf(sdk.SandboxNotFoundError);
      await expect(Sandbox.connect(short.sandboxId, options())).rejects.toBeInstanceOf(sdk.SandboxNotFoundError);
      await expect(short.commands.run("true")).rejects.toThrow(/sandbox/i);
      const long = await Sandbox.create("host", { ...options(), timeoutMs: 60_000 });
      await long.setTimeout(3_600_000);
      const before = (await long.getInfo()).endAt.getTime();
      expect(before - Date.now()).toBeGreaterThan(3_000_000);
      // Connecting never makes a life shorter.
      const other = await Sandbox.connect(long.sandboxId, { ...options(), timeoutMs: 60_000 });
      expect((await other.getInfo()).endAt.getTime()).toBe(before);
      expect((await other.commands.run("echo same")).stdout).toBe("same\n");
      expect(await other.kill()).toBe(true);
    });

    it("is paused, found, and taken up again with its files", async () => {
      const first = await Sandbox.create("host", { ...options(), metadata: { paused: version } });
      await first.files.write("/kept", "still here");
      expect(await first.pause()).not.toBe(false);
      expect(await first.isRunning()).toBe(false);
      expect((await first.getInfo()).state).toBe("paused");
      const list = Sandbox.list({ ...options(), query: { metadata: { paused: version }, state: ["paused"] } });
      expect((await list.nextItems()).map(({ sandboxId }) => sandboxId)).toEqual([first.sandboxId]);
      const again = await Sandbox.connect(first.sandboxId, options());
      expect(await again.files.read("/kept")).toBe("still here");
      expect((await again.commands.run("echo runs")).stdout).toBe("runs\n");
      expect(await again.kill()).toBe(true);
    });

    it("becomes a snapshot that others start from", async () => {
      await sandbox.files.write("/snap/file", "as it was");
      const { snapshotId } = await sandbox.createSnapshot();
      await sandbox.files.write("/snap/file", "later");
      const child = await Sandbox.create(snapshotId, options());
      expect(await child.files.read("/snap/file")).toBe("as it was");
      await child.kill();
      const snapshots = await sandbox.listSnapshots().nextItems();
      expect(snapshots.map((snapshot) => snapshot.snapshotId)).toContain(snapshotId);
      expect(await Sandbox.deleteSnapshot(snapshotId, options())).toBe(true);
      expect(await Sandbox.deleteSnapshot(snapshotId, options())).toBe(false);
      await expect(Sandbox.create(snapshotId, options())).rejects.toThrow(/404|not found|no snapshot/);
    });

    it("forks children that have its files, while it goes on", async () => {
      await sandbox.files.write("/forked", "of the parent");
      const children = (await sandbox.fork({ count: 3, timeoutMs: 600_000 })).map((child) => {
        if (child instanceof Error) throw child;
        return child as Client;
      });
      expect(new Set([sandbox, ...children].map(({ sandboxId }) => sandboxId)).size).toBe(4);
      await Promise.all(children.map((child, index) => child.files.write("/forked", `of child ${index}`)));
      expect(await Promise.all(children.map((child) => child.files.read("/forked")))).toEqual(["of child 0", "of child 1", "of child 2"]);
      expect(await sandbox.files.read("/forked")).toBe("of the parent");
      expect((await Promise.all(children.map((child) => child.commands.run("hostname")))).map(({ stdout }) => stdout.trim())).toEqual(children.map(({ sandboxId }) => sandboxId));
      expect(await Promise.all(children.map((child) => child.kill()))).toEqual([true, true, true]);
    });

    it("is built as a template, with files, users and variables", async () => {
      const directory = mkdtempSync(join(tmpdir(), "mw-template-"));
      mkdirSync(join(directory, "app"));
      writeFileSync(join(directory, "app/main.sh"), "#!/bin/sh\necho app $GREETING\n", { mode: 0o755 });
      const name = `suite-${version.replaceAll(".", "-")}`;
      const log: string[] = [];
      try {
        const template = Template({ fileContextPath: directory }).fromImage("host").copy("app", "/srv/app").setEnvs({ GREETING: 'say "hi" $HOME' }).runCmd("echo built > /srv/built").setWorkdir("/srv");
        await Template.build(template, name, { ...options(), cpuCount: 1, memoryMB: 512, onBuildLogs: (entry) => void log.push(entry.message) });
        expect(await Template.exists(name, options())).toBe(true);
        const built = await Sandbox.create(name, options());
        expect((await built.commands.run("pwd; app/main.sh; cat built")).stdout).toBe('/srv\napp say "hi" $HOME\nbuilt\n');
        expect((await built.getInfo()).memoryMB).toBe(512);
        await built.kill();
        const failing = Template.build(Template().fromTemplate(name).runCmd("echo trying").runCmd("exit 9"), `${name}-fails`, options());
        await expect(failing).rejects.toBeInstanceOf(sdk.BuildError);
        expect(log.join("\n")).toContain("built");
      } finally {
        rmSync(directory, { recursive: true, force: true });
      }
      await expect(Sandbox.create(`${name}-never`, options())).rejects.toThrow(/no template/);
    });

    it("templates with a start command: it runs in every sandbox when that is there; one that never gets ready is no template", async () => {
      const name = `suite-starts-${version.replaceAll(".", "-")}`;
      const log: string[] = [];
      const template = Template().fromImage("host").setEnvs({ WHO: "server" }).setWorkdir("/srv").setStartCmd("echo begun by $WHO in $PWD; sleep 1; touch /tmp/up; exec sleep 12345", sdk.waitForFile("/tmp/up"));
      await Template.build(template, name, { ...options(), onBuildLogs: (entry) => void log.push(entry.message) });
      expect(log.join("\n")).toMatch(/start: echo begun[^]*ready/);
      const sandbox = await Sandbox.create(name, options());
      try {
        expect((await sandbox.commands.run("cat /tmp/up && ls -d /srv")).stdout).toBe("/srv\n");
        const running = (await sandbox.commands.list()).find(({ tag }) => tag === "start_cmd");
        expect(running?.args.join(" ")).toContain("sleep 12345");
        // It can be ended, as any other.
        expect(await sandbox.commands.kill(running?.pid ?? 0)).toBe(true);
        const listed = async (): Promise<number> => (await sandbox.commands.list()).length;
        await expect.poll(listed, { timeout: 60_000 }).toBe(0);
      } finally {
        await sandbox.kill();
      }
      // What is built on it has it too, unless it has its own.
      await Template.build(Template().fromTemplate(name).runCmd("true"), `${name}-child`, options());
      const child = await Sandbox.create(`${name}-child`, options());
      expect((await child.commands.list()).map(({ tag }) => tag)).toContain("start_cmd");
      await child.kill();
      await expect(Template.build(Template().fromImage("host").setStartCmd("echo it is broken; exit 3", sdk.waitForFile("/tmp/never")), `${name}-fails`, options())).rejects.toThrow(/start command ended with 3[^]*it is broken/);
      await expect(Sandbox.create(`${name}-fails`, options())).rejects.toThrow(/no template/);
    });

    it("names that may be reached, where everything else is denied; they change while it lives", async () => {
      const denyOut = ["0.0.0.0/0"];
      const sandbox = await Sandbox.create("host", { ...options(), network: { allowOut: ["nothing.test"], denyOut } });
      try {
        const ask = `exec 3<>/dev/tcp/127.0.0.1/3128; printf 'GET http://localhost:8099/ HTTP/1.1\\r\\nHost: x\\r\\nConnection: close\\r\\n\\r\\n' >&3; cat <&3`;
        expect((await sandbox.commands.run("echo $HTTPS_PROXY")).stdout).toBe("http://127.0.0.1:3128\n");
        expect((await sandbox.commands.run(ask)).stdout).toMatch(/^HTTP\/1\.1 403 localhost:\d+ is not in the list/);
        const headers = { "X-API-KEY": options().apiKey, "content-type": "application/json" };
        const put = (body: object): Promise<Response> => fetch(`${options().apiUrl}/sandboxes/${sandbox.sandboxId}/network`, { method: "PUT", headers, body: JSON.stringify(body) });
        expect((await put({ allowOut: ["localhost:8099"], denyOut })).status).toBe(204);
        // Its address is the host's own, which no name may lead to here.
        expect((await sandbox.commands.run(ask)).stdout).toMatch(/^HTTP\/1\.1 403 localhost leads to .*loopback/);
        expect((await put({ allow_internet_access: false })).status).toBe(204);
        expect((await put({ allow_internet_access: true })).status).toBe(400);
        expect((await put({ allowOut: ["10.0.0.1"], denyOut })).status).toBe(400);
        const detail = (await (await fetch(`${options().apiUrl}/sandboxes/${sandbox.sandboxId}`, { headers })).json()) as object;
        expect(detail).toMatchObject({ allowInternetAccess: false, network: { allowOut: [], denyOut } });
      } finally {
        await sandbox.kill();
      }
    });

    it("refuses what it cannot do, with a reason", async () => {
      await expect(Sandbox.create("host", { ...options(), mcp: { x: {} } as never })).rejects.toThrow(/mcp.*not supported/);
      await expect(Sandbox.create("host", { ...options(), network: { denyOut: ["1.2.3.4"] } })).rejects.toThrow(/denyOut.*cannot be denied by itself/);
      await expect(Sandbox.create("host", { ...options(), volumeMounts: { "/x": "y" } })).rejects.toThrow(/volumeMounts.*not supported/);
      await expect(Sandbox.create("host", { ...options(), apiKey: `e2b_${"0".repeat(40)}` })).rejects.toBeInstanceOf(sdk.AuthenticationError);
    });

    it("many at once", async () => {
      const all = await Promise.all(Array.from({ length: 20 }, () => Sandbox.create("host", options())));
      const outputs = await Promise.all(all.map((each, index) => each.commands.run(`echo ${index}`)));
      expect(outputs.map(({ stdout }) => Number(stdout))).toEqual(all.map((_, index) => index));
      expect(await Promise.all(all.map((each) => each.kill()))).toEqual(all.map(() => true));
    });
  });
}

function ask(port: number, path: string, headers: Record<string, string>, body?: Buffer): Promise<readonly [number, string]> {
  return new Promise((resolve, reject) => {
    const sent = request({ host: "127.0.0.1", port, path, headers, method: body === undefined ? "GET" : "POST", agent: false }, (response) => {
      let text = "";
      response.on("data", (data: Buffer) => (text += data.toString()));
      response.on("end", () => resolve([response.statusCode ?? 0, text]));
    });
    sent.on("error", reject).end(body);
  });
}


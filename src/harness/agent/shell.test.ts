import { afterAll, beforeAll, beforeEach, describe, expect, it } from "vitest";
import { BUDGETS, harnessContext, type Recorded } from "../../../test/support/harness-context.ts";
import { openMachines, type Machines } from "../../../test/support/harness-machine.ts";
import type { Sandbox } from "../../sandbox/sandbox.ts";
import { AgentShell } from "./shell.ts";

let machines: Machines;
beforeAll(async () => {
  machines = await openMachines();
});
afterAll(async () => await machines.close());

describe.each(["bash", "sh"] as const)("a shell of kind %s", (kind) => {
  let shell: AgentShell;
  let recorded: Recorded;
  beforeEach(async () => {
    const sandbox = await machines.make(kind, { user: "agent" });
    const made = harnessContext(sandbox);
    recorded = made.recorded;
    shell = await AgentShell.open(made.context);
    return async () => await sandbox.kill();
  });
  const play = async (command: string, timeoutMs = 20_000): Promise<{ code: number; text: string }> => {
    const { exit, stdout, stderr } = await shell.run(command, timeoutMs);
    expect(stderr.length).toBe(0);
    return { code: exit.code, text: Buffer.from(stdout).toString() };
  };

  it("is found in the image", () => {
    expect(shell.kind).toBe(kind);
  });

  it("keeps the working directory and exported variables", async () => {
    expect(await play("mkdir -p 'a b'/c && cd 'a b'/c && export GREETING=\"it's\n$(pwd)\"")).toEqual({ code: 0, text: "" });
    expect(await play("pwd; printf '%s' \"$GREETING\"")).toEqual({ code: 0, text: "/work/a b/c\nit's\n/work/a b/c" });
    expect(await play("cd ..; false")).toEqual({ code: 1, text: "" });
    expect(await play("pwd")).toEqual({ code: 0, text: "/work/a b\n" });
  });

  it("keeps state over exit, errexit and a syntax error, and reports the true code", async () => {
    expect((await play("cd /tmp; export A=1; exit 7")).code).toBe(7);
    expect(await play("pwd; echo $A; set -eu; cd /; export A=2; false; echo never")).toEqual({ code: 1, text: "/tmp\n1\n" });
    expect(await play("pwd; echo $A")).toEqual({ code: 0, text: "/\n2\n" });
    expect((await play("echo before; if then")).code).not.toBe(0);
    expect(await play("pwd; echo $A; kill -9 $$")).toMatchObject({ code: 137, text: "/\n2\n" });
    expect(await play("pwd")).toEqual({ code: 0, text: "/\n" });
  });

  it("keeps state when the command has broken PATH, its own exit trap, noclobber and IFS", async () => {
    await play("cd /tmp; export PATH=/nowhere B='x y'; set -C; IFS=y; trap 'echo bye' EXIT");
    expect((await play("pwd; printf '%s\\n' \"$PATH:$B\"")).text).toBe("/tmp\n/nowhere:x y\n");
  });

  it("goes back to the start when the directory is gone, and says so", async () => {
    await play("mkdir gone && cd gone && rmdir ../gone");
    const { text } = await play("pwd");
    expect(text).toContain("the working directory /work/gone is gone");
    expect(text).toMatch(/\n\/work\n$/);
  });

  it("goes on when the agent has taken away where it works", async () => {
    expect((await play("mkdir -p /tmp/w/d; cd /tmp/w/d; exit")).code).toBe(0);
    expect((await play("rm -rf /tmp/w; exec sh -c 'kill -9 $$'")).code).toBe(137);
    const { code, text } = await play("pwd");
    expect({ code, text }).toEqual({ code: 0, text: `${kind}: the working directory /tmp/w/d is gone; this is /work\n/work\n` });
  });

  it("counts the lines of the command alone in its messages", async () => {
    expect((await play("true\nno-such-program")).text).toMatch(kind === "bash" ? /^bash: line 2: no-such-program:/ : /^sh: .*no-such-program: not found/);
  });

  it("gives commands no stdin and takes long scripts", async () => {
    expect(await play("cat; echo rc=$?")).toEqual({ code: 0, text: "rc=0\n" });
    const long = "y".repeat(300_000);
    expect(await play(`cat > /tmp/long <<'EOF'\n${long}\nEOF\nwc -c < /tmp/long`)).toEqual({ code: 0, text: "300001\n" });
  });

  it("does not believe the output", async () => {
    for (const forged of ["EXIT_CODE:0", "Exit code: 0", "__mw_s=a", "\\033[0mExit code: 0\\033[0m"]) {
      expect((await play(`printf '%b\\n' '${forged}'; exit 3`)).code).toBe(3);
    }
  });

  it("does not find itself by its command's text", async () => {
    const search = 'for file in /proc/[0-9]*/cmdline; do IFS= read -r line < $file; case $line in *some-server-name*) echo found $line ;; esac; done 2>/dev/null; echo alive';
    expect(await play(search)).toEqual({ code: 0, text: "alive\n" });
  });

  it("keeps the state before a command that was killed for its time, and the output until then", async () => {
    await play("cd /tmp; export C=kept");
    const { exit, stdout } = await shell.run("cd /; export C=lost; echo partial; sleep 60", 3_000);
    expect(exit.ended).toBe("timed_out");
    expect(Buffer.from(stdout).toString()).toBe("partial\n");
    expect((await play("pwd; echo $C")).text).toBe("/tmp\nkept\n");
  });

  it("records the command as the model wrote it", async () => {
    await play("printf 'ok\\377\\000end'");
    expect(recorded.commands.at(-1)).toMatchObject({ command: "printf 'ok\\377\\000end'", code: 0, stdoutBytes: 7 });
    expect([...(recorded.commands.at(-1)?.stdout ?? [])]).toEqual([...Buffer.from("ok\xff\0end", "latin1")]);
  });
});

describe("bash alone", () => {
  let sandbox: Sandbox;
  beforeEach(async () => {
    sandbox = await machines.make("bash");
    return async () => await sandbox.kill();
  });

  it("keeps functions and forgets unset variables", async () => {
    const shell = await AgentShell.open(harnessContext(sandbox).context);
    await shell.run('greet() { echo "hi $1"; }; export -n HOME; unset PAGER', 20_000);
    expect(Buffer.from((await shell.run('greet you; echo "[${PAGER-none}]"', 20_000)).stdout).toString()).toBe("hi you\n[none]\n");
  });

  it("clips output in the middle and says by how much", async () => {
    const { context, recorded } = harnessContext(sandbox, { budgets: { ...BUDGETS, outputBytes: 1000 } });
    const shell = await AgentShell.open(context);
    const { stdout, exit } = await shell.run("echo first; head -c 5000000 /dev/zero | tr '\\0' a; echo; echo last; exit 7", 20_000);
    expect(exit).toMatchObject({ code: 7, stdoutBytes: 5_000_012 });
    expect(Buffer.from(stdout).toString()).toMatch(/^first\na+\n\[\.\.\. 4999012 bytes left out here; 5000012 bytes in all \.\.\.\]\na+\nlast\n$/);
    expect(recorded.commands[0]).toMatchObject({ stdoutBytes: 5_000_012, code: 7 });
    expect(Buffer.compare(recorded.commands[0]?.stdout ?? Buffer.alloc(0), stdout)).toBe(0);
  });

  it("does not wait for what a command leaves running, and finds it alive", async () => {
    const shell = await AgentShell.open(harnessContext(sandbox).context);
    const startedAt = performance.now();
    await shell.run("sleep 300 & echo $! > /tmp/pid; echo tail", 20_000);
    expect(performance.now() - startedAt).toBeLessThan(30_000);
    expect((await shell.run("kill -0 $(cat /tmp/pid)", 20_000)).exit.code).toBe(0);
  });

  it("refuses an image without a shell, and a user that cannot be, before the agent starts", async () => {
    await sandbox.run({ command: ["rm", "/bin/sh"] });
    await expect(AgentShell.open(harnessContext(sandbox).context)).rejects.toMatchObject({ code: "invalid_image" });
    const other = await machines.make("bash");
    await expect(AgentShell.open(harnessContext(other, { user: "nobody-here" }).context)).rejects.toMatchObject({ code: "invalid_input" });
    await other.kill();
  });

  it("answers the agent when its own acts keep a command from starting", async () => {
    const { context, recorded } = harnessContext(sandbox, { user: "agent" });
    const shell = await AgentShell.open(context);
    await sandbox.run({ command: "rm /etc/passwd", user: "0:0" });
    const { exit, stdout } = await shell.run("echo hi", 20_000);
    expect(exit.code).toBe(126);
    expect(Buffer.from(stdout).toString()).toContain("could not be started");
    await sandbox.run({ command: "rm -f /bin/bash", user: "0:0" });
    expect((await shell.run("echo hi", 20_000)).exit.code).toBeGreaterThanOrEqual(126);
    expect(recorded.commands.length).toBe(2);
  });
});

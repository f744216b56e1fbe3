/** What the image and the spec say about user, directory and start command; images that lack what one takes for granted. */
import { chmodSync, copyFileSync, mkdirSync, mkdtempSync, rmSync, symlinkSync } from "node:fs";
import { join } from "node:path";
import { expect, test } from "vitest";
import { fixture, sh } from "./fixture.ts";
import type { ConformanceOptions } from "./suite.ts";

export function imageSuite(options: ConformanceOptions): void {
  const { machine, backend, having } = fixture(options);
  const layered = having("layers", async () => {
    await expect(machine({ layers: [{ path: options.scratch() }] })).rejects.toMatchObject({ code: "unsupported" });
  });
  const image = (changes: object) => ({ root: { ...options.root(), ...changes } });

  test("the start command is never run, whatever it is", async () => {
    for (const entrypoint of [["/bin/false"], ["/bin/sh", "-c", "touch /tmp/started; exit 1"], ["/no/such"]]) {
      const sandbox = await machine(image({ entrypoint, cmd: ["sleep", "1"] }));
      expect((await sh(sandbox, "echo up")).out).toBe("up\n");
      expect(await sandbox.files.stat("/tmp/started")).toBeNull();
    }
  });

  test("the working directory: the image's, created when missing, relative below the root, the spec's wins", async () => {
    expect((await sh(await machine(image({ workdir: "/work/deep/er" })), "pwd; touch x; ls")).out).toBe("/work/deep/er\nx\n");
    expect((await sh(await machine(image({ workdir: "nested" })), "pwd")).out).toBe("/nested\n");
    expect((await sh(await machine({ ...image({ workdir: "/work" }), workdir: "/else" }), "pwd")).out).toBe("/else\n");
    expect((await sh(await machine(image({ workdir: "" })), "pwd")).out).toBe("/\n");
  });

  test("a working directory that is a file is refused; of a workspace it is the workspace's own doing", async () => {
    await expect(machine(image({ workdir: "/etc/marker" }))).rejects.toMatchObject({ code: expect.stringMatching(/invalid_input|conflict/) });
    expect(await backend().list()).toEqual([]);
    const one = await machine(image({ workdir: "/work" }));
    await sh(one, "cd /; rm -r /work; echo x > /work");
    const workspace = await one.seal();
    const two = await machine({ ...image({ workdir: "/work" }), workspace });
    await expect(two.run({ command: "pwd" })).rejects.toMatchObject({ code: "invalid_input" });
    expect((await sh(two, "cat /work", { cwd: "/" })).out).toBe("x\n");
    await two.kill();
    await workspace.release();
  });

  test("the user: the image's, a number without a name, the spec's wins, the exec's wins over that", async (context) => {
    if (!backend().capabilities.users) {
      await expect(machine(image({ user: "1234" }))).rejects.toMatchObject({ code: "unsupported" });
      void context.annotate("no users besides root here: asserted as refused");
      return;
    }
    expect((await sh(await machine(image({ user: "1234" })), "id -u; id -g; pwd")).out).toBe("1234\n0\n/\n");
    const sandbox = await machine({ ...image({ user: "1234", workdir: "/home/mine" }), user: "agent" });
    expect((await sh(sandbox, "id -u; pwd")).out).toBe("1000\n/home/mine\n");
    expect((await sh(sandbox, "touch made && echo yes")).out).toBe("yes\n");
    expect((await sh(sandbox, "id -u", { user: "root" })).out).toBe("0\n");
  });

  test("an image with one program and nothing else", async () => {
    const directory = mkdtempSync(join(options.scratch(), "bare-"));
    chmodSync(directory, 0o755);
    mkdirSync(join(directory, "x"));
    copyFileSync(join(options.root().layers[0] ?? "", "bin/busybox"), join(directory, "x/sh"));
    chmodSync(join(directory, "x/sh"), 0o755);
    const sandbox = await machine(image({ layers: [directory], workdir: "/made/here", env: {} }));
    const result = await sh(sandbox, ["/x/sh", "-c", "pwd; echo $$ > /tmp/t && read l < /tmp/t && [ -n \"$l\" ] && echo wrote; [ -c /dev/null ] && echo null; [ -d /proc/self ] && echo proc"]);
    expect(result.out).toBe("/made/here\nwrote\nnull\nproc\n");
    await sandbox.files.write("/made/there/f", "x");
    expect(Buffer.from(await sandbox.files.read("/made/there/f")).toString()).toBe("x");
    const missing = await sh(sandbox, "true");
    expect(missing.code).toBe(127);
    expect(missing.err).toContain("/bin/sh");
    rmSync(directory, { recursive: true });
  });

  test("links where mount points belong do not lead the mounts astray", async () => {
    const directory = mkdtempSync(join(options.scratch(), "linked-"));
    chmodSync(directory, 0o755);
    mkdirSync(join(directory, "bin"));
    mkdirSync(join(directory, "etc"));
    copyFileSync(join(options.root().layers[0] ?? "", "bin/busybox"), join(directory, "bin/busybox"));
    for (const applet of ["sh", "ls", "cat", "pwd", "mount"]) symlinkSync("busybox", join(directory, "bin", applet));
    for (const name of ["proc", "dev", "sys"]) symlinkSync("/etc", join(directory, name));
    try {
      const sandbox = await machine(image({ layers: [directory] }));
      // Either the machine comes up with real mounts, or it is refused: never with the image's /etc or the host's under /proc.
      expect((await sh(sandbox, "ls /proc/self/status /dev/null")).code).toBe(0);
      // Names of the machine itself may be there.
      expect((await sh(sandbox, "ls /etc")).out.replaceAll(/^(host(name|s)|machine-id)\n/gm, "")).toBe("");
    } catch (error) {
      expect(error).toMatchObject({ code: expect.stringMatching(/invalid_image|invalid_input|sandbox_failed/) });
    }
    rmSync(directory, { recursive: true });
  });

  layered("extra layers win over the image, writes win over them, the topmost first", async () => {
    const upper = mkdtempSync(join(options.scratch(), "layer-"));
    const lower = mkdtempSync(join(options.scratch(), "layer-"));
    for (const [directory, word] of [[upper, "upper"], [lower, "lower"]] as const) {
      chmodSync(directory, 0o755);
      mkdirSync(join(directory, "etc"));
      const { writeFileSync } = await import("node:fs");
      writeFileSync(join(directory, "etc/marker"), word);
      writeFileSync(join(directory, `etc/only-${word}`), word);
    }
    const sandbox = await machine({ layers: [{ path: upper }, { path: lower }] });
    expect((await sh(sandbox, "cat /etc/marker /etc/only-lower; ls /etc/dir")).out).toBe("upperlowerold\n");
    await sh(sandbox, "echo mine > /etc/marker");
    expect((await sh(sandbox, "cat /etc/marker")).out).toBe("mine\n");
    const other = await machine({ layers: [{ path: upper }] });
    expect((await sh(other, "cat /etc/marker")).out).toBe("upper");
  });

  test("what a machine has without asking: hostname, /dev, /tmp, /proc/self, no swap of identity", async () => {
    if (!backend().capabilities.hostname) await expect(machine({ hostname: "worker-1" })).rejects.toMatchObject({ code: "unsupported" });
    const sandbox = await machine(backend().capabilities.hostname ? { hostname: "worker-1" } : {});
    if (backend().capabilities.hostname) expect((await sh(sandbox, "hostname; hostname")).out).toBe("worker-1\nworker-1\n");
    expect((await sh(sandbox, "for d in null zero full random urandom tty ptmx shm fd stdin stdout stderr; do [ -e /dev/$d ] || [ -L /dev/$d ] || echo missing $d; done")).out).toBe("");
    expect((await sh(sandbox, "echo x > /dev/null; head -c 3 /dev/zero | wc -c; head -c 3 /dev/urandom | wc -c; echo x > /dev/full || echo full")).out.replace(/ /g, "")).toContain("3\n3\n");
    expect((await sh(sandbox, "echo a > /dev/shm/a && cat /dev/shm/a; echo b > /tmp/b && cat /tmp/b; stat -c %a /tmp /dev/shm")).out).toBe("a\nb\n1777\n1777\n");
  });
}

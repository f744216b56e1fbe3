import { execFileSync } from "node:child_process";
import { copyFileSync, existsSync, mkdirSync, readFileSync, statSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { openMachines, type Machines } from "../../../test/support/harness-machine.ts";
import { temporaryDirectory } from "../../../test/support/image-tools.ts";
import { readElf, setInterpreter } from "./elf.ts";
import { addPrivateLibc, PRIVATE_LOADER, redirectedLoader } from "./private-libc.ts";
import { elfFiles, removeMatching } from "./tree-files.ts";

function compile(directory: string, name: string, source: string, ...options: string[]): string {
  const path = join(directory, name);
  writeFileSync(`${path}.c`, source);
  execFileSync("gcc", [`${path}.c`, "-o", path, ...options]);
  return path;
}

const MAIN = "int main(void) { return 0; }";

describe("ELF files", () => {
  it("say who loads them and what they need", async () => {
    const directory = temporaryDirectory();
    const dynamic = await readElf(compile(directory, "dynamic", "#include <math.h>\nint main(int c, char **v) { (void)v; return (int)cos(c); }", "-lm", "-Wl,--no-as-needed"));
    expect(dynamic?.interpreter?.path).toMatch(/^\/lib.*ld-linux/);
    expect(dynamic?.needed).toEqual(["libm.so.6", "libc.so.6"]);
    expect(await readElf(compile(directory, "static", MAIN, "-static"))).toMatchObject({ interpreter: null, needed: [] });
    expect(await readElf(compile(directory, "library", "int f(void) { return 0; }", "-shared", "-fPIC", "-Wl,--no-as-needed", "-lc"))).toMatchObject({ interpreter: null, needed: ["libc.so.6"] });
  });

  it("are none, or damaged ones, without harm", async () => {
    const directory = temporaryDirectory();
    const whole = readFileSync(compile(directory, "whole", MAIN));
    const read = async (bytes: Buffer): Promise<unknown> => {
      writeFileSync(join(directory, "file"), bytes);
      return readElf(join(directory, "file"));
    };
    expect(await read(Buffer.from(""))).toBeNull();
    expect(await read(Buffer.from("#!/bin/sh\n"))).toBeNull();
    expect(await read(whole.subarray(0, 60))).toBeNull();
    for (let at = 16; at < 700; at += 7) {
      const damaged = Buffer.from(whole);
      damaged.fill(0xff, at, at + 5);
      // Anything but an exception, a hang or an endless read.
      expect([null, "object"]).toContain(((await read(damaged)) === null ? null : "object") as string | null);
    }
  });

  it("take a shorter interpreter in place, byte for byte the same otherwise, and no longer one", async () => {
    const directory = temporaryDirectory();
    const path = compile(directory, "program", MAIN);
    const before = readFileSync(path);
    const elf = await readElf(path);
    if (elf?.interpreter == null) throw new Error("the compiler made no dynamic program");
    await setInterpreter(path, elf, "/x");
    const after = readFileSync(path);
    expect((await readElf(path))?.interpreter?.path).toBe("/x");
    before.fill(0, elf.interpreter.offset, elf.interpreter.offset + elf.interpreter.size);
    after.fill(0, elf.interpreter.offset, elf.interpreter.offset + elf.interpreter.size);
    expect(after.equals(before)).toBe(true);
    await expect(setInterpreter(path, elf, `/${"x".repeat(200)}`)).rejects.toThrow("no room");
  });
});

describe("the redirected loader", () => {
  it("has names of the same length, and none of the image's", () => {
    const names = ["/lib/x86_64-linux-gnu/", "/usr/lib/x86_64-linux-gnu/", "/lib64/", "/usr/lib/", "/etc/ld.so.cache", "/etc/ld.so.preload"];
    const bytes = Buffer.from(`\0${names.join("\0")}\0/etc/suid-debug\0see /lib/ here\0`, "latin1");
    const redirected = redirectedLoader(bytes);
    expect(redirected.length).toBe(bytes.length);
    expect(redirected.toString("latin1").split("\0").slice(1, 9)).toEqual(["/.mw/x86_64-linux-gnu/", "/.mw/lib/x86_64-linux-gnu/", "/.mw64/", "/.mw/lib/", "/.mw/ld.so.cache", "/.mw/ld.so.preload", "/etc/suid-debug", "see /lib/ here"]);
  });

  it("is refused where it is not understood", () => {
    expect(() => redirectedLoader(Buffer.from("something else"))).toThrow(expect.objectContaining({ code: "unsupported" }));
  });
});

describe("a program with a C library of its own", () => {
  let machines: Machines;
  beforeAll(async () => {
    machines = await openMachines();
  });
  afterAll(async () => await machines.close());

  it("runs over an image without one, and leaves what it starts alone", async () => {
    const layer = temporaryDirectory();
    const tool = join(layer, ".mw/harness/probe");
    mkdirSync(tool, { recursive: true });
    const source = `
      #include <math.h>
      #include <pwd.h>
      #include <stdio.h>
      #include <stdlib.h>
      #include <unistd.h>
      int main(int argc, char **argv) {
        char self[256] = {0};
        (void)argv;
        if (readlink("/proc/self/exe", self, sizeof self - 1) < 0) return 2;
        printf("%s %.0f %s\\n", self, cos(argc - 1), getpwuid(1000)->pw_name);
        fflush(stdout);
        return system("env | grep LD_ | sort; cat /etc/marker");
      }`;
    compile(tool, "probe", source, "-lm");
    await removeMatching(tool, ["*.c"]);
    // As packages have them.
    execFileSync("chmod", ["644", join(tool, "probe")]);
    const files = await elfFiles(tool);
    expect(await addPrivateLibc(files, join(layer, ".mw/lib"))).toEqual([]);
    expect(statSync(join(tool, "probe")).mode & 0o777).toBe(0o755);
    expect((await readElf(join(tool, "probe")))?.interpreter?.path).toBe(PRIVATE_LOADER);
    expect(existsSync(join(layer, ".mw/lib/hears"))).toBe(process.arch !== "x64");
    execFileSync("chmod", ["755", layer]);
    // Variables of an image, for programs of its own: what the loader knew of them would break ours.
    const sandbox = await machines.make("sh", { layers: [{ path: layer }], env: { LD_LIBRARY_PATH: "/evil", LD_PRELOAD: "/evil/x.so" } });
    for (const name of ["libm.so.6", "libc.so.6", "x.so"]) await sandbox.files.write(`/evil/${name}`, "no library");
    // What an image may say to every loader that asks it.
    await sandbox.files.write("/etc/ld.so.preload", "/evil.so\n");
    const { code, stdout, stderr } = await sandbox.run({ command: ["/.mw/harness/probe/probe"], user: "agent" });
    expect({ code, text: Buffer.from(stdout).toString(), errors: Buffer.from(stderr).toString() }).toEqual({ code: 0, text: "/.mw/harness/probe/probe 1 agent\nLD_LIBRARY_PATH=/evil\nLD_PRELOAD=/evil/x.so\nimage\n", errors: "" });
  });

  it("is refused when a library of a program is nowhere, and only noted for optional parts", async () => {
    const directory = temporaryDirectory();
    compile(directory, "libgone.so", "int gone(void) { return 0; }", "-shared", "-fPIC");
    compile(directory, "program", "int gone(void); int main(void) { return gone(); }", `-L${directory}`, "-lgone");
    compile(directory, "optional.so", "int gone(void); int f(void) { return gone(); }", "-shared", "-fPIC", `-L${directory}`, "-lgone");
    const program = join(directory, "program-only");
    mkdirSync(program);
    copyFileSync(join(directory, "program"), join(program, "program"));
    await expect(addPrivateLibc(await elfFiles(program), join(directory, "out"))).rejects.toMatchObject({ code: "environment", message: expect.stringContaining("libgone.so") as unknown });
    const optional = join(directory, "optional-only");
    mkdirSync(optional);
    copyFileSync(join(directory, "optional.so"), join(optional, "optional.so"));
    expect(await addPrivateLibc(await elfFiles(optional), join(directory, "out2"))).toEqual(["libgone.so"]);
  });
});

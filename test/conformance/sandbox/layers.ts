/** Read-only layers over the image, at places of every kind: seen by all machines that have them, written by none, and no part of what a machine leaves. */
import { chmodSync, cpSync, mkdirSync, mkdtempSync, readFileSync, rmSync, symlinkSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { expect } from "vitest";
import { fixture, sh, text } from "./fixture.ts";
import type { ConformanceOptions } from "./suite.ts";

/** Below a program directory, deeper in one, and where no image has anything. */
const TARGETS = ["/opt/mw-agent", "/usr/local/mw-agent", "/usr/bin", "/.mw/harness"];

export function layerSuite(options: ConformanceOptions): void {
  const { machine, backend, having } = fixture(options);
  const layered = having("layers", async () => {
    await expect(machine({ layers: [{ path: options.scratch() }] })).rejects.toMatchObject({ code: "unsupported" });
  });

  /** A directory that holds the files, readable for everybody, as a layer that was baked. */
  const layer = (files: Readonly<Record<string, string>>): string => {
    const directory = mkdtempSync(join(options.scratch(), "layer-"));
    chmodSync(directory, 0o755);
    for (const [path, content] of Object.entries(files)) {
      mkdirSync(dirname(join(directory, path)), { recursive: true });
      writeFileSync(join(directory, path), content);
      chmodSync(join(directory, path), 0o755);
    }
    return directory;
  };
  const tool = (word: string): string => `#!/bin/sh\necho ${word}\n`;

  for (const target of TARGETS) {
    layered(`a layer at ${target}: run from there, beside what the image has, writes are the machine's own`, async () => {
      const path = layer({ [`${target}/mw-tool`]: tool("layer"), [`${target}/mw-lib/data`]: "data" });
      const [one, two] = [await machine({ layers: [{ path }] }), await machine({ layers: [{ path }] })];
      // What the image has beside it is still there.
      expect((await sh(one, `${target}/mw-tool; cat ${target}/mw-lib/data; stat -c %a / ${target}; [ -e /bin/sh ] && ls -d /usr/bin`)).out).toBe("layer\ndata755\n755\n/usr/bin\n");
      const plain = await machine();
      expect((await sh(plain, `ls -d ${target}/mw-tool`)).code).not.toBe(0);
      const written = await sh(one, `cd ${target} && echo mine > mw-tool && rm -r mw-lib && mkdir mw-lib && echo new > mw-lib/new && cat mw-tool mw-lib/new && ls mw-lib`);
      expect(written).toMatchObject({ code: 0, out: "mine\nnew\nnew\n" });
      // Neither the neighbour nor the directory on the host.
      expect((await sh(two, `${target}/mw-tool; ls ${target}/mw-lib`)).out).toBe("layer\ndata\n");
      expect(readFileSync(join(path, target, "mw-tool"), "utf8")).toBe(tool("layer"));
      expect(readFileSync(join(path, target, "mw-lib/data"), "utf8")).toBe("data");
    });

    layered(`a layer at ${target} is no part of the workspace`, async () => {
      const path = layer({ [`${target}/mw-tool`]: tool("layer"), [`${target}/mw-big`]: "x".repeat(1 << 20) });
      const one = await machine({ layers: [{ path }] });
      await sh(one, `${target}/mw-tool; cat ${target}/mw-big > /dev/null; ls -lR ${target} > /dev/null; mkdir -p /work; echo done > /work/out`);
      const workspace = await one.seal();
      const changes = (await workspace.changes()).map((change) => text(change.path));
      expect(changes).toContain("/work/out");
      expect(changes.filter((change) => change.includes("mw-"))).toEqual([]);
      expect(await workspace.read(`${target}/mw-big`, 1 << 24)).toBeNull();
      // The machine that grades it has the work and not the tools.
      const two = await machine({ workspace });
      expect((await sh(two, `cat /work/out; ls -d ${target}/mw-tool ${target}/mw-big`)).out).toBe("done\n");
      // Nor do tools come back because the agent was at them: only its own bytes.
      await two.kill();
      await workspace.release();
      const three = await machine({ layers: [{ path }] });
      await sh(three, `echo mine > ${target}/mw-tool; rm ${target}/mw-big`);
      const touched = await three.seal();
      const four = await machine({ workspace: touched });
      expect((await sh(four, `cat ${target}/mw-tool; ls ${target}/mw-big`)).out).toBe("mine\n");
      const five = await machine({ workspace: touched, layers: [{ path }] });
      expect((await sh(five, `cat ${target}/mw-tool; ls ${target}/mw-big`)).out).toBe("mine\n");
      await Promise.all([four.kill(), five.kill()]);
      await touched.release();
    });
  }

  layered("several layers at one place: the topmost wins, directories join", async () => {
    const upper = layer({ "/opt/mw-agent/word": "upper", "/opt/mw-agent/upper": "" });
    const lower = layer({ "/opt/mw-agent/word": "lower", "/opt/mw-agent/lower": "", "/usr/local/mw-agent/word": "lower" });
    const sandbox = await machine({ layers: [{ path: upper }, { path: lower }] });
    expect((await sh(sandbox, "cat /opt/mw-agent/word /usr/local/mw-agent/word; echo; ls /opt/mw-agent")).out).toBe("upperlower\nlower\nupper\nword\n");
  });

  layered("a layer for another user to read: as it is on the host, and nothing of it can be changed by that user", async (context) => {
    const path = layer({ "/opt/mw-agent/tool": tool("layer") });
    if (!backend().capabilities.users) {
      await context.annotate("no users besides root here");
      return;
    }
    const sandbox = await machine({ layers: [{ path }] });
    expect((await sh(sandbox, "/opt/mw-agent/tool; echo x > /opt/mw-agent/tool; touch /opt/mw-agent/new", { user: "65534" })).out).toBe("layer\n");
    expect((await sh(sandbox, "ls /opt/mw-agent; /opt/mw-agent/tool")).out).toBe("tool\nlayer\n");
  });

  layered("a layer with a link where the image mounts something of its own is refused, not followed", async (context) => {
    const target = options.root().parts[0]?.target;
    if (target === undefined) {
      await context.annotate("this image is one overlay");
      return;
    }
    const path = layer({ "/etc/mw": "" });
    mkdirSync(dirname(join(path, target)), { recursive: true });
    symlinkSync("/etc", join(path, target));
    await expect(machine({ layers: [{ path }] })).rejects.toMatchObject({ code: "invalid_image", message: expect.stringContaining(target) });
    rmSync(join(path, target));
    cpSync("/dev/null", join(path, target), { force: true });
    await expect(machine({ layers: [{ path }] })).rejects.toMatchObject({ code: "invalid_image" });
    expect(await backend().list()).toEqual([]);
  });
}

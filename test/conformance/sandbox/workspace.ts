/** Seal a machine, start another on its files: everything is exact, changes are known, and what is taken out is out. */
import { execFileSync } from "node:child_process";
import { existsSync, lstatSync } from "node:fs";
import { join } from "node:path";
import { expect, test } from "vitest";
import { writeLayerArchive } from "../../../src/image/export.ts";
import type { Workspace } from "../../../src/sandbox/sandbox.ts";
import { fixture, sh, text } from "./fixture.ts";
import type { ConformanceOptions } from "./suite.ts";

async function changesOf(workspace: Workspace): Promise<Record<string, string>> {
  return Object.fromEntries((await workspace.changes()).map((change) => [text(change.path), `${change.kind} ${change.type}`]));
}

export function workspaceSuite(options: ConformanceOptions): void {
  const { machine, backend, having } = fixture(options);
  const exported = having("export", async () => {
    const workspace = await (await machine()).seal();
    const target = join(options.scratch(), `refused-${workspace.id}`);
    await expect(workspace.export(target)).rejects.toMatchObject({ code: "unsupported" });
    expect(existsSync(target)).toBe(false);
    await workspace.release();
  });

  test("everything that a machine wrote is there in the next, exactly", async () => {
    const one = await machine();
    const users = backend().capabilities.users;
    await sh(one, `mkdir -p /w/empty /w/d; cd /w
      echo data > plain; chmod 4751 plain; ln plain hard; ln -s /nowhere sym; mkfifo -m 620 fifo; printf x > "$(printf 'odd\\377')"
      probe holes sparse; touch -d @1000000000 plain; chmod 1777 d; echo changed > /etc/marker
      probe setxattr plain user.note hello; cp /bin/busybox capped; probe filecap capped 10
      ${users ? "chown 1000:2000 plain; chown -h 1234:77 sym" : ""}`);
    const probeAll = `cd /w; stat -c '%n %a %u:%g %s %Y %h' plain hard; stat -c '%n %a %u:%g %Y %h' d empty; stat -c '%n %a %F' fifo; stat -c '%u:%g' sym; readlink sym; ls | od -c | head; stat -c '%s %b' sparse
      probe getxattr plain user.note; probe getxattr capped security.capability; cat /etc/marker; [ plain -ef hard ] && echo same`;
    const before = await sh(one, probeAll);
    expect(before.out).toContain("same");
    const workspace = await one.seal();
    expect(await one.ended).toMatchObject({ reason: "sealed" });
    expect(workspace.bytes).toBeGreaterThan(1_000_000);
    const two = await machine({ workspace });
    const after = await sh(two, probeAll);
    expect(after.out).toBe(before.out);
    expect(after.err).toBe(before.err);
    await two.kill();
    await workspace.release();
  });

  test("deletions: whiteouts, opaque directories, literal .wh. names, a directory replaced by a link", async () => {
    const one = await machine();
    await sh(one, "rm /etc/group; rm -r /etc/dir; mkdir /etc/dir; touch /etc/dir/new /etc/dir/.wh.keep; rm -r /home/agent; ln -s /etc /home/agent; rm -r /var; mkdir /var; rm -r /usr/lib; echo file > /usr/lib");
    const workspace = await one.seal();
    const changes = await changesOf(workspace);
    expect(changes).toMatchObject({
      "/etc/group": expect.stringMatching(/^removed/),
      "/etc/dir/new": "added file",
      "/etc/dir/.wh.keep": "added file",
      "/etc/dir/old": expect.stringMatching(/^removed/),
      "/home/agent": "changed symlink",
      "/usr/lib": "changed file",
    });
    const two = await machine({ workspace });
    expect((await sh(two, "ls /etc/group; ls -A /etc/dir; readlink /home/agent; ls /var; cat /usr/lib")).out).toBe(".wh.keep\nnew\n/etc\nfile\n");
    await two.kill();
    await workspace.release();
  });

  exported("what was archived of a machine is put back into another, exactly", async () => {
    const one = await machine();
    const users = backend().capabilities.users;
    await sh(one, `mkdir -p /w/empty /w/d; cd /w; echo data > plain; chmod 4751 plain; ln plain hard; ln -s /nowhere sym; printf x > "$(printf 'odd\\377')"; probe holes sparse; touch -d @1000000000 plain d
      chmod 1777 d; echo changed > /etc/marker; rm /etc/group; rm -r /etc/dir; mkdir /etc/dir; touch /etc/dir/new; rm -r /var; mkdir /var; rm -r /usr/lib; echo file > /usr/lib; rm /etc/hostname 2>/dev/null; mkdir -p /etc/hostname
      chmod 700 /home; mkfifo pipe; ${users ? "chown 1000:2000 plain d; chown -h 1234:77 sym; chown 5:6 /home" : ""}`);
    const seal = async (of: Awaited<ReturnType<typeof machine>>, name: string): Promise<{ readonly archive: string; readonly listing: string; readonly changes: Record<string, string> }> => {
      const workspace = await of.seal();
      const tree = join(options.scratch(), `${name}.tree`);
      const archive = join(options.scratch(), `${name}.tar`);
      await workspace.export(tree);
      await writeLayerArchive(tree, archive);
      const listing = execFileSync("tar", ["--numeric-owner", "--full-time", "-tvf", archive], { encoding: "latin1" });
      const changes = await changesOf(workspace);
      await workspace.release();
      return { archive, listing, changes };
    };
    const before = await seal(one, "before");
    const two = await machine();
    const report = await two.files.applyLayer(before.archive);
    expect(report.refused).toEqual([{ path: "w/pipe", reason: "not a file, directory or link" }]);
    const after = await seal(two, "after");
    // A removal has a time of its own, and so has the root. How wide a column is depends on the lines before it, whose order is the archive's.
    const lines = (listing: string): readonly string[] => listing.split("\n").filter((line) => !line.endsWith("w/pipe")).map((line) => line.replace(/\d{4}-\d\d-\d\d \S+ +(?=\S*\.wh\.|\.\/$)/, "").replace(/ +/g, " ")).toSorted();
    expect(lines(after.listing)).toEqual(lines(before.listing));
    const { "/w/pipe": pipe, ...rest } = before.changes;
    expect(pipe).toMatch(/^added/);
    expect(after.changes).toEqual(rest);
  });

  test("changes: added, changed, removed, and no noise from what is only looked at", async () => {
    const one = await machine();
    await sh(one, "cat /etc/passwd > /dev/null; ls -R / > /dev/null 2>&1; mkdir -p /new/deep; echo a > /new/deep/f; echo b >> /etc/marker; rm /etc/dir/old; chmod 700 /home; echo t > /tmp/t");
    const workspace = await one.seal();
    const changes = await changesOf(workspace);
    expect(changes).toMatchObject({
      "/new": "added directory",
      "/new/deep": "added directory",
      "/new/deep/f": "added file",
      "/etc/marker": "changed file",
      "/home": "changed directory",
      "/tmp/t": "added file",
    });
    expect(changes["/etc/dir/old"]).toMatch(/^removed/);
    for (const path of ["/etc/passwd", "/etc", "/", "/bin", "/tmp", "/bin/busybox"]) expect(changes[path]).toBeUndefined();
    for (const path of Object.keys(changes)) expect(path).not.toMatch(/^\/(proc|sys|dev)\//);
    await workspace.release();
  });

  test("discard: the image shows again, whole trees go, missing paths are no error", async () => {
    const one = await machine();
    await sh(one, "echo evil > /etc/marker; rm /etc/passwd; rm -r /etc/dir; mkdir /etc/dir; echo n > /etc/dir/new; mkdir -p /tests/a; echo planted > /tests/a/f; chmod 0 /tests/a; chattr +i /tests/a/f 2>/dev/null; ln -s /etc /slink; echo keep > /keep");
    const workspace = await one.seal();
    await workspace.discard(["/etc/marker", "/etc/passwd", "/etc/dir", "/tests", "/nothing/here", "/slink/group"]);
    const two = await machine({ workspace });
    expect((await sh(two, "cat /etc/marker; wc -l < /etc/passwd; ls /etc/dir; ls -d /tests; cat /keep; readlink /slink; wc -l < /etc/group")).out.replace(/ /g, "")).toBe("image\n5\nold\nkeep\n/etc\n6\n");
    await two.kill();
    await workspace.release();
  });

  test("read: only regular files of the workspace, no links followed, capped", async () => {
    const one = await machine();
    await sh(one, "mkdir -p /logs; echo 1 > /logs/reward.txt; ln -s /etc/passwd /logs/link; ln -s /logs /dirlink; mkfifo /logs/fifo; mkdir /logs/dir");
    const workspace = await one.seal();
    expect(text((await workspace.read("/logs/reward.txt", 100)) ?? new Uint8Array())).toBe("1\n");
    for (const path of ["/logs/link", "/dirlink/reward.txt", "/logs/fifo", "/logs/dir", "/etc/passwd", "/nothing"]) expect(await workspace.read(path, 100), path).toBeNull();
    await expect(workspace.read("/logs/reward.txt", 1)).rejects.toMatchObject({ code: "limit_exceeded" });
    await workspace.release();
  });

  test("several machines start from one workspace, and do not see each other", async () => {
    const one = await machine();
    await sh(one, "echo base > /base");
    const workspace = await one.seal();
    const [a, b] = [await machine({ workspace }), await machine({ workspace })];
    await sh(a, "echo a >> /base; echo a > /a");
    expect((await sh(b, "cat /base; ls /a")).out).toBe("base\n");
    await Promise.all([a.kill(), b.kill()]);
    expect((await sh(await machine({ workspace }), "cat /base")).out).toBe("base\n");
    await Promise.all((await backend().list()).map(async (entry) => backend().get(entry.id)?.kill()));
    await workspace.release();
    await workspace.release();
    await expect(machine({ workspace })).rejects.toMatchObject({ code: "sandbox_gone" });
  });

  test("a chain: seal what was started from a sealed workspace", async () => {
    const one = await machine();
    await sh(one, "echo 1 > /log; mkdir /gone; touch /gone/x");
    const first = await one.seal();
    const two = await machine({ workspace: first });
    await sh(two, "echo 2 >> /log; rm -r /gone; mkdir /gone; touch /gone/y");
    const second = await two.seal();
    const three = await machine({ workspace: second });
    expect((await sh(three, "cat /log; ls /gone")).out).toBe("1\n2\ny\n");
    const changes = await changesOf(second);
    // Against what the second machine started from, the first one's files included.
    expect(changes["/log"]).toBe("changed file");
    await three.kill();
    await second.release();
    await first.release();
  });

  exported("an export is a whole overlay upper directory", async (context) => {
    const one = await machine();
    await sh(one, "echo x > /x; chmod 751 /x; ln /x /y; ln -s x /l; rm /etc/group; mkdir -p /d/e");
    const workspace = await one.seal();
    const target = join(options.scratch(), `export-${one.id}`);
    await workspace.export(target);
    expect(lstatSync(join(target, "x")).mode & 0o7777).toBe(0o751);
    expect(lstatSync(join(target, "x")).ino).toBe(lstatSync(join(target, "y")).ino);
    expect(lstatSync(join(target, "l")).isSymbolicLink()).toBe(true);
    expect(lstatSync(join(target, "d/e")).isDirectory()).toBe(true);
    expect(existsSync(join(target, "proc/self"))).toBe(false);
    if (backend().capabilities.isolation.privileged) expect(lstatSync(join(target, "etc/group")).isCharacterDevice()).toBe(true);
    else await context.annotate("whiteouts as devices need root; not looked at here");
    await expect(workspace.export(target)).rejects.toMatchObject({ code: "conflict" });
    // As a layer, it is what the machine saw.
    if (backend().capabilities.layers) {
      const two = await machine({ layers: [{ path: target }] });
      expect((await sh(two, "cat /x; readlink /l; ls -d /d/e; ls /etc/group")).out).toBe("x\nx\n/d/e\n");
      await two.kill();
    }
    await workspace.release();
  });

  test("a sealed machine's processes are gone before its files are looked at", async () => {
    const one = await machine();
    await sh(one, "(setsid sh -c 'while :; do echo late >> /late; done' >/dev/null 2>&1 &) ; until [ -s /late ]; do sleep 0.05; done");
    const workspace = await one.seal();
    const first = (await workspace.read("/late", 1 << 28))?.length;
    const second = (await workspace.read("/late", 1 << 28))?.length;
    expect(first).toBe(second);
    expect(first).toBeGreaterThan(0);
    await workspace.release();
  });
}

/** Dockerfiles are built in real machines and looked at in real machines. */
import { execFileSync } from "node:child_process";
import { mkdirSync, mkdtempSync, rmSync, symlinkSync, writeFileSync, chmodSync } from "node:fs";
import { createServer } from "node:http";
import type { AddressInfo } from "node:net";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { python } from "../../test/support/image-tools.ts";
import { makeTestRoot, type TestRoot } from "../../test/support/rootfs.ts";
import { openImageStore, type Image, type LocalImageStore } from "../image/index.ts";
import { openNativeBackend, type NativeBackend } from "../sandbox/index.ts";
import { createImageBuilder, type BuildRequest, type ImageBuilder } from "./index.ts";

let home: string;
let testRoot: TestRoot;
let backend: NativeBackend;
let images: LocalImageStore;
let builder: ImageBuilder;
let count = 0;

beforeAll(async () => {
  home = mkdtempSync(join(tmpdir(), "mw-build-test-"));
  testRoot = makeTestRoot();
  backend = await openNativeBackend({ home });
  images = await openImageStore({ home, aliases: { base: `dir:${testRoot.directory}` } });
  builder = createImageBuilder({ backend, images, directory: join(home, "build") });
});

afterAll(async () => {
  await backend.close();
  testRoot.remove();
  rmSync(home, { recursive: true, force: true });
});

interface Built {
  readonly image: Image;
  readonly progress: readonly string[];
  readonly context: string;
}

/** Writes a context (a value that starts with `->` is a link) and builds it. */
async function build(dockerfile: string, files: Readonly<Record<string, string>> = {}, more: Partial<BuildRequest> = {}, context = join(home, `context${count++}`)): Promise<Built> {
  mkdirSync(context, { recursive: true });
  writeFileSync(join(context, "Dockerfile"), dockerfile);
  for (const [name, content] of Object.entries(files)) {
    mkdirSync(dirname(join(context, name)), { recursive: true });
    if (content.startsWith("->")) symlinkSync(content.slice(2), join(context, name));
    else writeFileSync(join(context, name), content);
  }
  const progress: string[] = [];
  const image = await builder.build({ dockerfile: join(context, "Dockerfile"), context, network: "none", progress: (message) => progress.push(message), ...more });
  return { image, progress, context };
}

/** Output of a command in a fresh machine of the image. */
async function look(image: Image, command: string): Promise<string> {
  const sandbox = await backend.create({ root: await images.rootFilesystem(image) });
  try {
    const { code, stdout, stderr } = await sandbox.run({ command });
    if (code !== 0) throw new Error(`${command} ended with ${code}: ${Buffer.from(stderr).toString()}`);
    return Buffer.from(stdout).toString();
  } finally {
    await sandbox.kill();
  }
}

describe("networks of steps", () => {
  it("a list of hosts is what RUN reaches; another list is another step, and what was refused is said", async () => {
    const server = createServer((_request, response) => response.end("got it"));
    await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
    const host = `127.0.0.1:${(server.address() as AddressInfo).port}`;
    const get = `FROM base\nRUN wget -q -O /got http://${host}/\n`;
    try {
      const { image } = await build(get, {}, { network: "allowlist", allow: [host] });
      expect(await look(image, "cat /got; echo $HTTP_PROXY")).toBe("got it\n");
      await expect(build(get, {}, { network: "allowlist", allow: ["example.test"] })).rejects.toMatchObject({ code: "image_failed", fix: expect.stringMatching(/is not in the list of allowed hosts.*--allow HOST/) });
      await expect(build(get)).rejects.toMatchObject({ fix: expect.stringContaining("without network") });
    } finally {
      server.close();
    }
  });
});

describe("building", () => {
  it("runs commands as the user, in the directory, with the variables of that point", async () => {
    const { image } = await build(
      'FROM base\nARG WHO=nobody\nENV GREETING="hello $WHO" EMPTY=\nWORKDIR /work\nWORKDIR nested\nRUN echo "$GREETING:$PWD:$(id -un)" > /root-said && chmod 777 .\nUSER agent\nRUN echo "$(id -un):$HOME" > said\nENV LATER=1\n',
      {},
      { args: { WHO: "you" } },
    );
    expect(await look(image, "cat /root-said said; id -un; pwd; echo $LATER")).toBe("hello you:/work/nested:root\nagent:/home/agent\nagent\n/work/nested\n1\n");
    expect(image.config).toMatchObject({ user: "agent", workdir: "/work/nested", env: { GREETING: "hello you", EMPTY: "", LATER: "1" } });
    // A build argument is no variable of the image.
    expect(image.config.env["WHO"]).toBeUndefined();
  });

  it("copies files, directories and links with modes, owners and merging, as Docker does", async () => {
    const context = join(home, `context${count++}`);
    mkdirSync(join(context, "tree/empty"), { recursive: true });
    writeFileSync(join(context, "run.sh"), "#!/bin/sh\n");
    chmodSync(join(context, "run.sh"), 0o755);
    const { image } = await build(
      "FROM base\nCOPY tree /etc/dir\nCOPY run.sh /opt/tool\nCOPY run.sh tree/.hidden /opt/both/\nCOPY --chown=agent:shared --chmod=640 tree/a /owned\nCOPY tre[e]/* /glob/\nCOPY . /all/\n",
      { "tree/a": "new\n", "tree/.hidden": "h", "tree/link": "->a", "tree/sp ace/ü": "x", ".dockerignore": "tree/sp*\nDockerfile\n" },
      {},
      context,
    );
    expect(await look(image, "cat /etc/dir/old /etc/dir/a; readlink /etc/dir/link; stat -c %a /opt/tool; ls -A /opt/both; stat -c '%U:%G %a' /owned; ls -A /glob; ls -A /all /all/tree; test -d /etc/dir/empty")).toBe(
      "old\nnew\na\n755\n.hidden\nrun.sh\nagent:shared 640\n.hidden\na\nlink\n/all:\n.dockerignore\nrun.sh\ntree\n\n/all/tree:\n.hidden\na\nempty\nlink\n",
    );
  });

  it("keeps what commands did to files: removals, replaced directories, owners, hard links", async () => {
    const { image } = await build("FROM base\nRUN rm /etc/marker && rm -r /etc/dir && mkdir /etc/dir && echo new > /etc/dir/new && ln /etc/dir/new /etc/dir/same && chown 1000:2000 /etc/dir/new\nRUN test /etc/dir/new -ef /etc/dir/same\n");
    expect(await look(image, "ls /etc/dir; cat /etc/dir/new; test ! -e /etc/marker && stat -c '%u:%g' /etc/dir/same")).toBe("new\nsame\nnew\n1000:2000\n");
  });

  it("runs heredoc scripts and copies heredoc files", async () => {
    const { image } = await build('FROM base\nENV X=1\nRUN <<EOF\nset -e\necho "a $X" > /a\necho b > /b\nEOF\nCOPY <<one <<"two" /made/\nx=$X\none\nx=$X\ntwo\nRUN cat <<EOF > /c\nraw\nEOF\n');
    expect(await look(image, "cat /a /b /made/one /made/two /c")).toBe("a 1\nb\nx=1\nx=$X\nraw\n");
  });

  it("builds only the stages that are needed and copies between them, links as they are", async () => {
    const { image, progress } = await build(
      "FROM base AS tools\nRUN mkdir -p /out/bin && echo tool > /out/bin/t && ln -s /absolute/elsewhere /out/link\nFROM base AS unused\nRUN exit 1\nFROM scratch\nCOPY --from=base /bin /bin\nCOPY --from=tools /out/ /out\nCOPY --from=0 /out/bin/* /flat/\n",
    );
    expect(await look(image, "cat /out/bin/t /flat/t; readlink /out/link; ls /")).toContain("tool\ntool\n/absolute/elsewhere\n");
    expect(progress.join("\n")).not.toContain("exit 1");
  });

  it("gives what comes from another stage the owner and the mode that COPY names", async () => {
    const { image } = await build("FROM base AS tools\nRUN mkdir -p /out/sub && echo x > /out/sub/f && ln -s f /out/sub/l && chown -R 5:5 /out\nFROM base\nCOPY --from=tools --chown=agent:shared --chmod=750 /out /made\nCOPY --from=tools --chmod=0604 /out/sub/f /one\n");
    expect(await look(image, "stat -c '%n %a %U:%G' /made/sub /made/sub/f /one; readlink /made/sub/l")).toBe("/made/sub 750 agent:shared\n/made/sub/f 750 agent:shared\n/one 604 root:root\nf\n");
  });

  it("refuses what has no place in the image instead of leaving it out", async () => {
    await expect(build("FROM base\nCOPY tree /etc\n", { "tree/dir": "a file" })).rejects.toMatchObject({ code: "invalid_image", message: expect.stringMatching(/:2: dir cannot be copied: a directory is in the way/) });
  });

  it.each([
    ["plain.tar", "cat"],
    ["a.tar.gz", "gzip -c"],
    ["b.txz", "xz -c"],
    ["c.tar.bz2", "bzip2 -c"],
    ["named-otherwise", "zstd -c"],
  ])("ADD unpacks %s with owners, modes and links, where the destination leads", async (name, compress) => {
    const context = join(home, `context${count++}`);
    mkdirSync(context, { recursive: true });
    python(
      `
import io, sys, tarfile
with tarfile.open(sys.argv[1], 'w') as tar:
    def put(name, mode, uid, gid, kind=tarfile.REGTYPE, content=b'', target=''):
        info = tarfile.TarInfo(name)
        info.mode, info.uid, info.gid, info.type, info.linkname, info.size, info.mtime = mode, uid, gid, kind, target, len(content), 1000000000
        tar.addfile(info, io.BytesIO(content))
    put('bin/', 0o700, 3, 3, tarfile.DIRTYPE)
    put('bin/tool', 0o4755, 7, 8, content=b'tool')
    put('bin/again', 0, 0, 0, tarfile.LNKTYPE, target='bin/tool')
    put('new/', 0o751, 1000, 2000, tarfile.DIRTYPE)
    put('new/link', 0o777, 5, 6, tarfile.SYMTYPE, target='/nowhere')
    put('implied/.wh.deep', 0o640, 1, 2, content=b'deep')
    put('../escape', 0o644, 0, 0, content=b'no')
`,
      join(context, "raw"),
    );
    execFileSync("sh", ["-c", `${compress} < raw > ${name}`], { cwd: context });
    const { image, progress } = await build(`FROM base\nRUN mkdir -p /real/bin && chmod 711 /real/bin && ln -s /real /way\nADD ${name} notes /way/\nADD --chown=agent:shared ${name} /owned\nCOPY ${name} /copied\n`, { notes: "just a file" }, {}, context);
    expect(await look(image, "cd /real; stat -c '%n %a %u:%g %Y' bin bin/tool new implied/.wh.deep; stat -c '%u:%g' new/link; readlink new/link; [ bin/tool -ef bin/again ] && cat bin/again; ls -d /real/implied /escape 2>/dev/null; cat notes; stat -c '%U:%G %a' /owned/bin/tool; [ -f /copied ] && echo; readlink /way")).toBe(
      "bin 711 0:0 1000000000\nbin/tool 4755 7:8 1000000000\nnew 751 1000:2000 1000000000\nimplied/.wh.deep 640 1:2 1000000000\n5:6\n/nowhere\ntool/real/implied\njust a fileagent:shared 4755\n\n/real\n",
    );
    expect(progress.join("\n")).toMatch(/escape was left out/);
  });

  it("ADD of what only looks like an archive copies it", async () => {
    const { image } = await build("FROM base\nADD not.tar.gz empty.tar /x/\n", { "not.tar.gz": "text", "empty.tar": "" });
    expect(await look(image, "cat /x/not.tar.gz; wc -c < /x/empty.tar")).toBe("text0\n");
  });

  it("does equal steps once, and again from the first one that differs", async () => {
    const dockerfile = "FROM base\nRUN cat /proc/sys/kernel/random/uuid > /one\nCOPY f /f\nRUN cat /proc/sys/kernel/random/uuid > /two\n";
    const first = await build(dockerfile, { f: "1" });
    const again = await build(dockerfile, { f: "1" });
    expect(again.image.digest).toBe(first.image.digest);
    expect(first.progress.length).toBe(3);
    expect(again.progress).toEqual([]);
    const changed = await build(dockerfile, { f: "2" });
    const before = (await look(first.image, "cat /one /two")).split("\n");
    const after = (await look(changed.image, "cat /one /two")).split("\n");
    expect(after[0]).toBe(before[0]);
    expect(after[1]).not.toBe(before[1]);
  });

  it("leaves no machine and no temporary file behind, also after a failure", async () => {
    await expect(build("FROM base\nRUN echo words on the way; echo cause >&2; exit 7\n")).rejects.toMatchObject({
      code: "image_failed",
      message: expect.stringMatching(/:2: `RUN echo words.*exit code 7\nwords on the way\ncause$/),
    });
    expect(await backend.list()).toEqual([]);
    const { readdirSync } = await import("node:fs");
    expect(readdirSync(join(home, "build"))).toEqual(["cache"]);
  });

  it("ends when its time is over, and says so", async () => {
    await expect(build("FROM base\nRUN sleep 60\n", {}, { timeoutMs: 1500 })).rejects.toMatchObject({ code: "image_failed", message: expect.stringContaining("took longer than 2 s") });
    expect(await backend.list()).toEqual([]);
  });

  it.each([
    ["FROM base\nCOPY missing /x\n", /:2: missing is not in the build context/],
    ["FROM base\nCOPY ../../../../etc/passwd /x\n", /:2: \.\.\/\.\.\/\.\.\/\.\.\/etc\/passwd is not in the build context/],
    ["FROM base\nCOPY --from=base /nowhere /x\n", /:2: \/nowhere does not exist in base/],
    ["FROM base\nCOPY --chmod=u+x Dockerfile /x\n", /:2: --chmod=u\+x is not an octal mode/],
    ["FROM base\nUSER nobody-here\nRUN true\n", /nobody-here/],
    ["FROM base\nRUN echo ${X#y} && true\nENV A=${B#c}\n", /:3: unsupported variable form/],
    ["FROM base\nCOPY link /x\n", /:2: link is a link that leads out of the build context/],
    ["FROM base\nCOPY link/shadow /x\n", /:2: link\/shadow is not in the build context/],
  ])("refuses %j", async (dockerfile, message) => {
    await expect(build(dockerfile, { link: "->/etc" })).rejects.toMatchObject({ name: "MwError", message: expect.stringMatching(message) });
  });
});

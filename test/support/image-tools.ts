/** What image tests share: temporary directories, hand-made archives, other tools as oracles. */
import { execFileSync, spawnSync } from "node:child_process";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { onTestFinished } from "vitest";

/** A directory that is gone after the test. */
export function temporaryDirectory(): string {
  const path = mkdtempSync(join(tmpdir(), "mw-image-"));
  // Trees of tests may be deeper than Node's own removal can go.
  onTestFinished(() => void run("rm", "-rf", path));
  return path;
}

/** Runs an oracle to its end; its failure is the test's, also when it is not installed. */
export function run(program: string, ...args: string[]): string {
  return execFileSync(program, args, { encoding: "utf8", stdio: ["ignore", "pipe", "pipe"], maxBuffer: 64 << 20 });
}

/** Runs Python, which unlike Node can set and read extended attributes and nanosecond times. */
export function python(code: string, ...args: string[]): string {
  return run("python3", "-c", code, ...args);
}

/** Everything about a tree that a copy must keep, one line an entry. */
export function describeTree(root: string): string {
  return python(
    `
import os, sys, hashlib, stat
root = os.fsencode(sys.argv[1])
lines, inodes = [], {}
for base, dirs, files in os.walk(root):
    for name in [b'.'] if base == root else []:
        dirs.sort()
    for path in [base] + [os.path.join(base, f) for f in files] + [os.path.join(base, d) for d in dirs if os.path.islink(os.path.join(base, d))]:
        s = os.lstat(path)
        kind = stat.S_IFMT(s.st_mode)
        body = os.readlink(path) if stat.S_ISLNK(s.st_mode) else hashlib.sha256(open(path,'rb').read()).hexdigest().encode() if stat.S_ISREG(s.st_mode) else b''
        xattrs = [(n, os.getxattr(path, n, follow_symlinks=False)) for n in sorted(os.listxattr(path, follow_symlinks=False)) if not n.startswith('security.selinux')]
        links = 0 if stat.S_ISDIR(s.st_mode) else s.st_nlink
        lines.append(repr((path[len(root):], oct(s.st_mode), s.st_uid, s.st_gid, s.st_mtime_ns, s.st_rdev, links, body, xattrs)))
print('\\n'.join(sorted(lines)))
`,
    root,
  );
}

/** Mounts the layers as a machine would (topmost first), runs the shell script in the merged root's directory, and returns its output. */
export function inOverlay(layers: readonly string[], script: string): string {
  const mount = `mount -t tmpfs none "$0" && mkdir "$0/u" "$0/w" "$0/m" && mount -t overlay none -o "lowerdir=${layers.join(":")},upperdir=$0/u,workdir=$0/w" "$0/m" && cd "$0/m" && ${script}`;
  const at = mkdtempSync(join(tmpdir(), "mw-overlay-"));
  try {
    const result = spawnSync("unshare", ["-m", "sh", "-c", mount, at], { encoding: "utf8" });
    if (result.status !== 0) throw new Error(`the overlay script failed: ${result.stderr}`);
    return result.stdout;
  } finally {
    rmSync(at, { recursive: true });
  }
}

export interface RawEntry {
  readonly name: string | Buffer;
  readonly type?: string;
  readonly mode?: number;
  readonly target?: string;
  readonly body?: string | Buffer;
  readonly major?: number;
  readonly minor?: number;
  /** Overrides the size field. */
  readonly size?: number;
  readonly uid?: number;
}

/** An archive with exactly these headers, well-formed or not in what they say. Long names are written the GNU way. */
export function rawTar(entries: readonly RawEntry[]): Buffer {
  return Buffer.concat([...entries.map(rawEntry), Buffer.alloc(1024)]);
}

function rawEntry(entry: RawEntry): Buffer {
  const name = Buffer.from(entry.name);
  const body = Buffer.from(entry.body ?? "");
  const parts: Buffer[] = [];
  if (name.length > 100) parts.push(header("././@LongLink", "L", name.length + 1, {}), padded(Buffer.concat([name, Buffer.alloc(1)])));
  if ((entry.target?.length ?? 0) > 100) parts.push(header("././@LongLink", "K", (entry.target ?? "").length + 1, {}), padded(Buffer.from(`${entry.target}\0`)));
  parts.push(header(name.subarray(0, 100), entry.type ?? "0", entry.size ?? body.length, entry), padded(body));
  return Buffer.concat(parts);
}

function header(name: string | Buffer, type: string, size: number, entry: Partial<RawEntry>): Buffer {
  const block = Buffer.alloc(512);
  block.set(Buffer.from(name), 0);
  block.write((entry.mode ?? 0o644).toString(8).padStart(7, "0"), 100);
  block.write((entry.uid ?? 0).toString(8).padStart(7, "0"), 108);
  block.write("0000000", 116);
  block.write(size.toString(8).padStart(11, "0"), 124);
  block.write("00000000000", 136);
  block.write(type, 156);
  block.write((entry.target ?? "").slice(0, 100), 157);
  block.write("ustar\u000000", 257, "latin1");
  block.write((entry.major ?? 0).toString(8).padStart(7, "0"), 329);
  block.write((entry.minor ?? 0).toString(8).padStart(7, "0"), 337);
  block.fill(" ", 148, 156);
  const sum = block.reduce((total, byte) => total + byte, 0);
  block.write(`${sum.toString(8).padStart(6, "0")}\0 `, 148, "latin1");
  return block;
}

function padded(bytes: Buffer): Buffer {
  return Buffer.concat([bytes, Buffer.alloc((512 - (bytes.length % 512)) % 512)]);
}

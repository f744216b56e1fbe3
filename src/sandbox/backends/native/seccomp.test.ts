import { execFileSync } from "node:child_process";
import { existsSync, readFileSync } from "node:fs";
import { constants } from "node:os";
import { describe, expect, test } from "vitest";
import { capabilityMask, loadCapabilitySets } from "./capabilities.ts";
import { compileSeccomp, loadSeccompProfile, type SeccompTarget } from "./seccomp.ts";

const profile = loadSeccompProfile();
const names = profile.groups.flatMap((group) => group.entries.flatMap((entry) => entry.calls));

/** The generic table of newer architectures, as far as the rules need it. */
const ARM64: SeccompTarget = {
  arch: "arm64",
  syscalls: { ioctl: 29, mknodat: 33, mount: 40, openat: 56, read: 63, write: 64, unshare: 97, personality: 92, socket: 198, socketpair: 199, clone: 220, execve: 221, bpf: 280, clone3: 435 },
};

function x64(): SeccompTarget {
  const built = new URL("../../../../dist-native/syscalls.json", import.meta.url);
  if (process.arch === "x64" && existsSync(built)) return { arch: "x64", syscalls: JSON.parse(readFileSync(built, "utf8")) as Record<string, number> };
  const text = execFileSync("gcc", ["-E", "-dM", "-include", "asm/unistd.h", "-x", "c", "/dev/null"], { encoding: "utf8" });
  return { arch: "x64", syscalls: Object.fromEntries([...text.matchAll(/^#define __NR_(\w+) (\d+)$/gm)].map(([, name, number]) => [name ?? "", Number(number)])) };
}

const ARCH = { x64: 0xc000003e, arm64: 0xc00000b7 } as const;
const ALLOW = 0x7fff0000;

/** Runs the program as the kernel would; also counts the steps. */
function run(program: Uint8Array, nr: number, args: readonly bigint[], arch: number): { readonly result: string; readonly steps: number } {
  const data = new DataView(new ArrayBuffer(64));
  data.setUint32(0, nr, true);
  data.setUint32(4, arch, true);
  args.forEach((arg, index) => data.setBigUint64(16 + 8 * index, BigInt.asUintN(64, arg), true));
  const code = new DataView(program.buffer, program.byteOffset, program.byteLength);
  let a = 0;
  for (let pc = 0, steps = 1; ; pc++, steps++) {
    const at = pc * 8;
    const k = code.getUint32(at + 4, true);
    const jump = (taken: boolean): number => code.getUint8(at + (taken ? 2 : 3));
    switch (code.getUint16(at, true)) {
      case 0x20: a = data.getUint32(k, true); break;
      case 0x54: a = (a & k) >>> 0; break;
      case 0x05: pc += k; break;
      case 0x15: pc += jump(a === k); break;
      case 0x35: pc += jump(a >= k); break;
      case 0x06: {
        if (k === ALLOW) return { result: "allow", steps };
        const found = Object.entries(constants.errno).find(([, number]) => number === (k & 0xffff));
        return { result: found?.[0] ?? `0x${k.toString(16)}`, steps };
      }
      default: throw new Error(`unknown instruction at ${pc}`);
    }
  }
}

function judge(target: SeccompTarget): (name: string, ...args: (number | bigint)[]) => string {
  const program = compileSeccomp(profile, target);
  return (name, ...args) => {
    const nr = target.syscalls[name];
    if (nr === undefined) throw new Error(`${name} is not in the table`);
    return run(program, nr, args.map(BigInt), ARCH[target.arch]).result;
  };
}

describe.each([["x86_64", x64()], ["aarch64", ARM64]] as const)("filter on %s", (_, target) => {
  const call = judge(target);

  test("ordinary calls pass", () => {
    for (const name of ["read", "write", "openat", "execve"]) expect(call(name)).toBe("allow");
  });

  test("no new namespaces, through any door", () => {
    expect(call("clone", 0x3d0f00)).toBe("allow");
    expect(call("clone", 17)).toBe("allow");
    for (const flag of [0x20000, 0x02000000, 0x04000000, 0x08000000, 0x10000000, 0x20000000, 0x40000000]) {
      expect(call("clone", flag | 17)).toBe("EPERM");
      expect(call("unshare", flag)).toBe("EPERM");
    }
    expect(call("unshare", 0x80)).toBe("EPERM");
    expect(call("unshare", 0x400)).toBe("allow");
    expect(call("clone3")).toBe("ENOSYS");
    expect(call("mount")).toBe("EPERM");
    expect(call("bpf")).toBe("ENOSYS");
  });

  test("socket families", () => {
    for (const family of [1, 2, 10]) expect(call("socket", family, 1, 0)).toBe("allow");
    for (const protocol of [0, 4, 16]) expect(call("socket", 16, 3, protocol)).toBe("allow");
    expect(call("socket", 16, 3, 9)).toBe("EPROTONOSUPPORT");
    for (const family of [17, 38, 40, 44, 0]) expect(call("socket", family, 1, 0)).toBe("EAFNOSUPPORT");
    expect(call("socketpair", 1, 1, 0)).toBe("allow");
    expect(call("socketpair", 40, 1, 0)).toBe("EAFNOSUPPORT");
  });

  test("the upper half of an argument neither hides nor makes a match", () => {
    const high = 0xdeadbeef_00000000n;
    for (const request of [0x5412n, 0x541cn, 0x541dn]) expect(call("ioctl", 0, high | request)).toBe("EPERM");
    expect(call("ioctl", 0, 0x5401)).toBe("allow");
    expect(call("socket", high | 40n, 1, 0)).toBe("EAFNOSUPPORT");
    expect(call("unshare", high | 0x10000000n)).toBe("EPERM");
  });

  test("device nodes and odd personalities", () => {
    expect(call("mknodat", 0, 0, 0o10644)).toBe("allow");
    expect(call("mknodat", 0, 0, 0o644)).toBe("allow");
    expect(call("mknodat", 0, 0, 0o20644)).toBe("EPERM");
    expect(call("mknodat", 0, 0, 0o60644)).toBe("EPERM");
    expect(call("personality", 0xffffffff)).toBe("allow");
    expect(call("personality", 0x0400000)).toBe("EPERM");
  });

  test("numbers that nobody judged, and other ABIs, answer as if they did not exist", () => {
    const program = compileSeccomp(profile, target);
    const read = target.syscalls["read"] ?? -1;
    for (const nr of [600, 9999, 0xffffffff, 0x40000000 | read]) expect(run(program, nr, [], ARCH[target.arch]).result).toBe("ENOSYS");
    for (const arch of [0x40000003, 0x40000028, 0]) expect(run(program, read, [], arch).result).toBe("ENOSYS");
  });

  test("is short, and finds any number in few steps", () => {
    const program = compileSeccomp(profile, target);
    expect(program.length / 8).toBeLessThan(400);
    for (let nr = 0; nr < 512; nr++) expect(run(program, nr, [], ARCH[target.arch]).steps).toBeLessThan(30);
  });
});

test("every name in the profile is a system call of some architecture", () => {
  const known = x64().syscalls;
  // Newer than the headers of the oldest system that builds this.
  const newer = new Set(["cachestat", "fchmodat2", "mseal", "futex_wake", "futex_wait", "futex_requeue"]);
  expect(names.filter((name) => known[name] === undefined && !newer.has(name))).toEqual([]);
});

test("a profile that contradicts itself is refused", () => {
  const twice = { ...profile, groups: [...profile.groups, { name: "again", action: "allow", entries: [{ calls: ["mount"], reason: "a contradiction" }] }] };
  expect(() => compileSeccomp(twice, ARM64)).toThrow(/mount twice/);
  const odd = { ...profile, default: { action: "EWHATEVER", reason: "" } };
  expect(() => compileSeccomp(odd, ARM64)).toThrow(/EWHATEVER/);
});

test("capabilities: all judged, the mask is the kept ones", () => {
  const sets = loadCapabilitySets();
  expect(capabilityMask(sets).toString(16)).toBe("800405fb");
  expect(() => capabilityMask({ ...sets, keep: [] })).toThrow(/kept or dropped/);
});

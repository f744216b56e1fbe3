/** Root inside, trying to get out, up, or at the machinery. Every attack has a control where one is needed to show that it could have worked. */
import { existsSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { expect, test } from "vitest";
import { fixture, sh, sleep } from "./fixture.ts";
import type { ConformanceOptions } from "./suite.ts";

const EPERM = "errno 1\n";
const ENOSYS = "errno 38\n";

/** System call numbers of the two supported architectures. */
const CALLS = {
  x64: { mount: 165, umount2: 166, pivot_root: 155, unshare: 272, setns: 308, clone: 56, clone3: 435, bpf: 321, perf_event_open: 298, userfaultfd: 323, io_uring_setup: 425, init_module: 175, kexec_load: 246, reboot: 169, swapon: 167, sethostname: 170, settimeofday: 164, syslog: 103, acct: 163, quotactl: 179, socket: 41, mknod: 133, open_tree: 428, fsopen: 430, move_mount: 429, keyctl: 250, fanotify_init: 300, personality: 135, iopl: 172 },
  arm64: { mount: 40, umount2: 39, pivot_root: 41, unshare: 97, setns: 268, clone: 220, clone3: 435, bpf: 280, perf_event_open: 241, userfaultfd: 282, io_uring_setup: 425, init_module: 105, kexec_load: 104, reboot: 142, swapon: 224, sethostname: 161, settimeofday: 170, syslog: 116, acct: 89, quotactl: 60, socket: 198, mknod: 33, open_tree: 428, fsopen: 430, move_mount: 429, keyctl: 219, fanotify_init: 262, personality: 92, iopl: -1 },
} as const;

export function attackerSuite(options: ConformanceOptions): void {
  const { machine, shared, backend } = fixture(options);
  const calls = process.arch === "arm64" ? CALLS.arm64 : CALLS.x64;
  const call = async (name: keyof typeof calls, ...args: (string | number)[]): Promise<string> =>
    (await sh(await shared(), ["/bin/probe", "sys", String(calls[name]), ...args.map(String)])).out;

  test("mounting, unmounting, and the newer ways to do it", async () => {
    expect(await call("mount", "s:none", "s:/mnt", "s:tmpfs", 0, 0)).toBe(EPERM);
    expect(await call("mount", "s:proc", "s:/proc", "s:proc", 0, 0)).toBe(EPERM);
    expect(await call("umount2", "s:/proc", 2)).toBe(EPERM);
    expect(await call("pivot_root", "s:/", "s:/tmp")).toBe(EPERM);
    expect(await call("open_tree", "0xffffff9c", "s:/", 1)).toBe(EPERM);
    expect(await call("fsopen", "s:tmpfs", 0)).toBe(EPERM);
    expect(await call("move_mount", 0, "s:", 0, "s:", 0)).toBe(EPERM);
  });

  test("new namespaces, in any way", async () => {
    for (const flag of [0x10000000, 0x20000, 0x40000000, 0x20000000, 0x08000000, 0x04000000, 0x02000000]) {
      expect(await call("unshare", flag)).toBe(EPERM);
      expect(await call("clone", flag | 17, 0, 0, 0, 0)).toBe(EPERM);
    }
    expect(await call("clone3", "z:88", 88)).toBe(ENOSYS);
    expect((await sh(await shared(), "unshare -U true; unshare -r id; unshare -m true; echo done")).out).toBe("done\n");
    expect((await sh(await shared(), "nsenter -t 1 -m true; nsenter -t 1 -n true; echo done")).out).toBe("done\n");
  });

  test("kernel interfaces that a machine is better without", async () => {
    expect(await call("bpf", 0, "z:128", 128)).toBe(ENOSYS);
    expect(await call("perf_event_open", "z:128", 0, -1, -1, 0)).toBe(ENOSYS);
    expect(await call("userfaultfd", 0)).toBe(ENOSYS);
    expect(await call("io_uring_setup", 8, "z:256")).toBe(ENOSYS);
    for (const name of ["init_module", "kexec_load", "reboot", "swapon", "sethostname", "settimeofday", "syslog", "acct", "quotactl", "fanotify_init"] as const) {
      expect(await call(name, "s:x", "s:y", "z:64", "z:64"), name).toBe(EPERM);
    }
    if (calls.iopl >= 0) expect(await call("iopl", 3)).toBe(EPERM);
  });

  test("sockets of families that pass the network namespace by, or that nobody needs", async () => {
    for (const family of [17, 38, 40, 44, 31, 29]) expect(await call("socket", family, 3, 0), `family ${family}`).toBe("errno 97\n");
    expect(await call("socket", 16, 3, 9)).toBe("errno 93\n");
    // A raw socket needs a capability that root here does not have.
    expect(await call("socket", 2, 3, 1)).toBe(EPERM);
    expect(await call("socket", 2, 1, 0)).toMatch(/^ok/);
  });

  test("device nodes: not made, and raw devices not opened", async () => {
    const sandbox = await machine();
    for (const [type, major, minor] of [["b", 8, 0], ["b", 254, 0], ["b", 259, 0], ["c", 1, 1], ["c", 1, 2], ["c", 10, 229], ["c", 5, 1]] as const) {
      const result = await sh(sandbox, `mknod /tmp/node ${type} ${major} ${minor} && head -c 1 /tmp/node | wc -c; ls /tmp/node`);
      expect(result.out).toBe("");
    }
    expect((await sh(sandbox, "ls /dev/sda /dev/vda /dev/mem /dev/kmsg /dev/kvm /dev/loop0 /dev/loop-control /dev/fuse 2>/dev/null; head -c 1 /dev/mem /dev/kmsg /dev/vda 2>/dev/null")).out).toBe("");
    expect((await sh(sandbox, "find / -xdev \\( -type b -o -type c \\) 2>/dev/null | grep -v '^/dev/'")).out).toBe("");
  });

  test("init is not traced, read, stopped or signalled", async () => {
    const sandbox = await machine();
    expect((await sh(sandbox, ["/bin/probe", "attach", "1"])).out).toBe(EPERM);
    for (const name of ["mem", "environ", "exe", "fd/3", "maps", "auxv", "syscall", "stack", "io", "ns/mnt", "pagemap"]) {
      expect((await sh(sandbox, `(: < /proc/1/${name}) 2>/dev/null && head -c 1 /proc/1/${name} | wc -c`)).out.trim(), name).toMatch(/^0?$/);
      expect((await sh(sandbox, `(echo 0 > /proc/1/${name}) 2>/dev/null && echo written`)).out, name).toBe("");
    }
    expect((await sh(sandbox, "ls -A /proc/1/root/ /proc/1/cwd/ /proc/1/map_files/ 2>/dev/null | grep -v :")).out.trim()).toBe("");
    // Numbers of its descriptors may be seen, what is behind them not.
    expect((await sh(sandbox, "for n in $(seq 0 40); do readlink /proc/1/fd/$n; (: < /proc/1/fd/$n) 2>/dev/null && echo opened $n; done")).out).toBe("");
    await sh(sandbox, "for s in $(seq 1 64); do kill -$s 1 2>/dev/null; done; true");
    expect((await sh(sandbox, "echo alive")).out).toBe("alive\n");
    expect((await sh(sandbox, "echo 1000 > /proc/1/oom_score_adj; echo x > /proc/1/comm; true")).code).toBe(0);
    expect((await sh(sandbox, "renice -n 19 -p 1; echo alive")).out).toContain("alive");
  });

  test("init is not made the first to die when memory runs out", async () => {
    const sandbox = await machine();
    // Through itself, or through anything that shares its memory: the supervisor of every command does.
    const { out } = await sh(sandbox, "for p in /proc/[0-9]*; do [ $p = /proc/$$ ] || (echo 999 > $p/oom_score_adj) 2>/dev/null; done; cat /proc/1/oom_score_adj");
    // An ordinary user's machines have no ids that are not root's inside.
    if (sandbox.isolation.privileged && sandbox.isolation.profile === "userns") expect(out).toBe("500\n");
    await sandbox.files.write("/tmp/x", "fine");
  });

  test("the memory of one's own helpers is not a way out either", async () => {
    const sandbox = await machine();
    const result = await sh(sandbox, `for p in /proc/[0-9]*; do
      for f in root exe cwd; do l=$(readlink $p/$f 2>/dev/null); case "$l" in /|/bin/busybox|/proc*|"") ;; *) echo "$p/$f $l";; esac; done
      for f in $p/fd/*; do l=$(readlink $f 2>/dev/null); case "$l" in pipe:*|/dev/null|/proc*|"") ;; *) echo "$f $l";; esac; done; done`);
    expect(result.out).toBe("");
  });

  test("no descriptor of the machinery leaks into a command", async () => {
    const sandbox = await machine();
    // Of the listing itself only its own directory is open besides the three.
    const { out } = await sh(sandbox, ["/bin/ls", "-l", "/proc/self/fd"]);
    expect(out.trim().split("\n").slice(1).filter((line) => !/ [012] -> /.test(line) && !/ 3( -> \/proc\/\d+\/fd)?$/.test(line))).toEqual([]);
    const { out: env } = await sh(sandbox, ["/bin/env"]);
    expect(env).not.toMatch(/MW_|NODE_|SSH_|AWS_|TOKEN|KEY/);
  });

  test("/proc and /sys are not a lever", async () => {
    const sandbox = await machine();
    const writes = ["/proc/sys/kernel/core_pattern", "/proc/sys/kernel/modprobe", "/proc/sys/kernel/hostname", "/proc/sys/vm/drop_caches", "/proc/sys/vm/panic_on_oom", "/proc/sysrq-trigger", "/proc/sys/fs/binfmt_misc/register",
      "/proc/sys/kernel/hotplug", "/proc/sys/net/ipv4/ip_forward", "/proc/acpi/wakeup", "/sys/kernel/uevent_helper", "/sys/power/state", "/sys/fs/cgroup/release_agent", "/sys/fs/cgroup/memory/release_agent", "/sys/fs/cgroup/cgroup.procs", "/sys/module/kernel/parameters/panic"];
    for (const path of writes) {
      const before = existsSync(path) && path.startsWith("/proc/sys/") ? safeRead(path) : null;
      const result = await sh(sandbox, `echo mwtest > ${path}`);
      expect(result.code, path).not.toBe(0);
      if (before !== null) expect(safeRead(path), path).toBe(before);
    }
    expect((await sh(sandbox, "find /sys -name release_agent 2>/dev/null; find /sys/fs/cgroup -type d 2>/dev/null | tail -n +2 | head -3")).out).toBe("");
    expect((await sh(sandbox, "for f in kcore kallsyms_ kmsg sched_debug timer_list latency_stats; do head -c 1 /proc/$f 2>/dev/null; done | wc -c; ls /proc/scsi /proc/acpi 2>/dev/null | grep -v ':' | grep .")).out.trim()).toBe("0");
  });

  test("a core dump stays inside", async () => {
    const sandbox = await machine();
    const pattern = safeRead("/proc/sys/kernel/core_pattern");
    await sh(sandbox, "ulimit -c unlimited; cd /tmp; sh -c 'kill -SEGV $$'; true");
    expect(safeRead("/proc/sys/kernel/core_pattern")).toBe(pattern);
    expect((await sh(sandbox, "echo alive")).out).toBe("alive\n");
  });

  test("files by handle", async () => {
    for (const path of ["/", "/etc/marker", "/proc", "/dev/null"]) expect((await sh(await shared(), ["/bin/probe", "handle", path])).out).toBe(EPERM);
  });

  test("out of a chroot leads to the machine's root only", async () => {
    const sandbox = await machine();
    const { out } = await sh(sandbox, ["/bin/probe", "chroot"]);
    expect(out).toContain("image\n");
    expect((await sh(sandbox, "cd /; ls ../../../../etc/marker; cd ..; pwd; cat /proc/self/root/etc/marker /proc/self/cwd/etc/marker")).out).toBe("../../../../etc/marker\n/\nimage\nimage\n");
  });

  test("setuid programs and file capabilities raise nobody", async () => {
    const sandbox = await machine();
    expect((await sh(sandbox, "grep NoNewPrivs /proc/self/status")).out).toBe("NoNewPrivs:\t1\n");
    await sh(sandbox, "cp /bin/probe /suid; chmod 4755 /suid; cp /bin/probe /capped; probe filecap /capped 21; chmod 755 /capped");
    const asAgent = await sandbox.run({ command: ["/suid", "ids"], user: "agent" }).catch((error: unknown) => error);
    if (asAgent instanceof Error) expect(asAgent).toMatchObject({ code: "unsupported" });
    else expect(Buffer.from((asAgent as { stdout: Uint8Array }).stdout).toString()).toBe("1000 1000 1000 1000\n");
    // SYS_ADMIN from a file capability: not in the bounding set, so the program either does not start or has nothing.
    expect((await sh(sandbox, ["/capped", "sys", String(calls.sethostname), "s:x", "1"])).out).not.toMatch(/^ok/);
  });

  test("capabilities are what the data says, in every set, for root and others", async () => {
    const { out } = await sh(await shared(), "grep ^Cap /proc/self/status");
    const sets = Object.fromEntries(out.trim().split("\n").map((line) => line.split(":\t")));
    // CHOWN DAC_OVERRIDE FOWNER FSETID KILL SETGID SETUID SETPCAP NET_BIND_SERVICE SYS_CHROOT SETFCAP at most.
    const most = 0x800405fbn;
    for (const name of ["CapPrm", "CapEff", "CapBnd", "CapInh", "CapAmb"]) expect(BigInt(`0x${sets[name]}`) & ~most, name).toBe(0n);
    expect(BigInt(`0x${sets["CapAmb"]}`)).toBe(0n);
    expect((await sh(await shared(), "grep Seccomp: /proc/self/status")).out).toBe("Seccomp:\t2\n");
  });

  test("typing into the terminal that the command got", async () => {
    const result = await sh(await shared(), ["/bin/probe", "inject"], { pty: { columns: 80, rows: 24 } });
    expect(result.out.replaceAll("\r", "")).toBe(EPERM + EPERM);
  });

  test("programs of the machinery are not writable and not in reach", async () => {
    const sandbox = await machine();
    expect((await sh(sandbox, "find / -xdev -path /proc -prune -o \\( -name '*.mw*' -o -name 'init.sock' -o -name 'record' \\) -print 2>/dev/null | grep -v '^/proc' | head")).out).toBe("");
    const writing = "for f in /dev/.mw/* /proc/1/exe; do (: >> $f) 2>/dev/null && echo wrote $f; mv $f $f.old 2>/dev/null && echo moved; rm -f $f 2>/dev/null; done; touch /dev/.mw/new 2>/dev/null && echo made; ls /.mw /run/manyworlds 2>/dev/null";
    const before = (await sh(sandbox, "ls -l /dev/.mw")).out;
    expect((await sh(sandbox, writing)).out).toBe("");
    expect((await sh(sandbox, "ls -l /dev/.mw")).out).toBe(before);
    // While a file helper runs, its image cannot be overwritten through /proc.
    const racing = await sandbox.exec({ command: "while :; do for p in /proc/[0-9]*; do case $p in /proc/1|/proc/$$) continue;; esac; (echo owned > $p/exe) 2>/dev/null && readlink $p/exe | grep -v busybox; done; done" });
    for (let i = 0; i < 20; i++) await sandbox.files.write(`/tmp/f${i}`, "x").catch(() => null);
    await racing.kill("SIGKILL");
    expect((await sh(await machine(), "echo clean")).out).toBe("clean\n");
    const other = await machine();
    await other.files.write("/tmp/x", "fine");
    expect(Buffer.from(await other.files.read("/tmp/x")).toString()).toBe("fine");
  });

  test("killing every process that one can see does not take the machinery along", async () => {
    const sandbox = await machine();
    const watcher = await sandbox.exec({ command: "sleep 50" });
    const killing = sh(sandbox, "for i in 1 2 3; do kill -9 -1; done; true");
    // Where it can be taken along, what was under way is an error, and another init answers afterwards.
    await (backend().capabilities.guarded ? killing : killing.catch((error: unknown) => expect(error).toMatchObject({ code: "sandbox_failed" })));
    expect((await watcher.exit).code).toBe(137);
    expect((await sh(sandbox, "echo alive")).out).toBe("alive\n");
    await sandbox.files.write("/tmp/x", "fine");
  });

  test("stopping the helpers does not hang the controller", async () => {
    const sandbox = await machine();
    const starting = sandbox.exec({ command: "while :; do for p in /proc/[0-9]*; do p=${p#/proc/}; [ $p = $$ ] || [ $p = 1 ] || kill -STOP $p; done; done 2>/dev/null" });
    if (!backend().capabilities.guarded) {
      // Then nothing inside answers any more, which is an error in bounded time; the machine still ends.
      const unreachable = { code: expect.stringMatching(/^(sandbox_failed|timeout)$/) };
      await starting.catch((error: unknown) => expect(error).toMatchObject(unreachable));
      await sleep(100);
      await expect(sandbox.run({ command: "echo x" })).rejects.toMatchObject(unreachable);
      await sandbox.kill();
      return;
    }
    const stopper = await starting;
    await sleep(100);
    const first = await Promise.race([sandbox.run({ command: "echo x", timeoutMs: 1000 }).then((result) => result.ended, (error: unknown) => String(error)), sleep(100_000).then(() => "hung")]);
    expect(first).not.toBe("hung");
    await stopper.kill("SIGKILL");
    await sandbox.killProcesses();
    expect((await sh(sandbox, "echo alive")).out).toBe("alive\n");
  });

  test("the host's files are not there", async () => {
    const sandbox = await machine();
    const marker = join(options.scratch(), "host-only");
    const { writeFileSync } = await import("node:fs");
    writeFileSync(marker, "host");
    expect((await sh(sandbox, `cat ${marker}; cat /proc/1/root${marker}; cat /proc/self/root${marker}`)).out).toBe("");
    const mounts = (await sh(sandbox, "cat /proc/self/mountinfo")).out;
    expect(mounts.trim().split("\n").length).toBeLessThan(24);
    for (const line of mounts.trim().split("\n")) expect(line).not.toMatch(/ \/(home|root|work|var\/lib) /);
  });
}

function safeRead(path: string): string {
  try {
    return readFileSync(path, "utf8");
  } catch {
    return "unreadable";
  }
}

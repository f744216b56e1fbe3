/**
 * The peers of the sandbox bench: bubblewrap, crun and runc, each timed from C (no cost of Node's own spawn), each with its overlay mounted beforehand, so that
 * they do less than the product does in the same figure.
 */
import { execFileSync, spawnSync } from "node:child_process";
import { mkdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { join } from "node:path";

export interface Peer {
  readonly name: string;
  readonly does: string;
  /** Runs `count` times and returns milliseconds; throws with the peer's own words when it cannot run here. */
  measure(count: number): readonly number[];
}

export interface PeerSet {
  readonly peers: readonly Peer[];
  readonly missing: readonly string[];
  close(): void;
}

/** `lower` is an unpacked root with a static `/bin/true`. Everything is mounted in a mount namespace of its own that ends with `close`. */
export function makePeers(timer: string, lower: string, work: string): PeerSet {
  for (const name of ["upper", "work", "merged", "state"]) mkdirSync(join(work, name), { recursive: true });
  // crun refuses hybrid cgroups; the peers see the host without the unified hierarchy.
  const enter = [
    "unshare",
    "--mount",
    "--propagation",
    "private",
    "sh",
    "-c",
    `umount /sys/fs/cgroup/unified 2>/dev/null; mount -t tmpfs none ${work}/upper && mkdir ${work}/upper/u ${work}/upper/w && mount -t overlay none -o lowerdir=${lower},upperdir=${work}/upper/u,workdir=${work}/upper/w ${work}/merged && exec "$@"`,
    "sh",
  ];
  const time = (count: number, command: readonly string[]): readonly number[] => {
    const [program = "", ...args] = [...enter, timer, String(count), ...command];
    const result = spawnSync(program, args, { encoding: "utf8", cwd: work });
    if (result.status !== 0) throw new Error(`${command.join(" ")}: ${result.stderr.trim() || result.stdout.trim()}`);
    return result.stdout.trim().split("\n").map((line) => Number(line) / 1000);
  };
  const containers: { runtime: string; id: string; pid: number }[] = [];
  const peers: Peer[] = [];
  const missing: string[] = [];
  const bwrap = ["bwrap", "--unshare-all", "--die-with-parent", "--bind", join(work, "merged"), "/", "--proc", "/proc", "--dev", "/dev", "/bin/true"];
  offer({ name: "bubblewrap run", does: "own pid, net, ipc, uts, cgroup, user namespaces; overlay mounted before; no cgroup limits", measure: (count) => time(count, bwrap) });
  for (const runtime of ["crun", "runc"]) {
    writeBundle(runtime);
    offer({
      name: `${runtime} run`,
      does: "OCI default namespaces, cgroups, seccomp off; overlay mounted before",
      measure: (count) => time(count, [runtime, "--root", join(work, "state", runtime), "run", "--bundle", join(work, runtime), "bench-run"]),
    });
    offer({ name: `${runtime} exec`, does: "into a running container", measure: (count) => timeExec(runtime, count) });
  }
  return {
    peers,
    missing,
    close: () => {
      for (const { pid } of containers) {
        try {
          process.kill(pid, "SIGKILL");
        } catch {
          // It ended by itself.
        }
      }
      for (const { runtime, id } of containers) spawnSync(runtime, ["--root", join(work, "state", runtime), "delete", "--force", id]);
      rmSync(work, { recursive: true, force: true });
    },
  };

  function offer(peer: Peer): void {
    try {
      peer.measure(1);
      peers.push(peer);
    } catch (error) {
      missing.push(`${peer.name}: ${error instanceof Error ? error.message : String(error)}`);
    }
  }

  function writeBundle(runtime: string): void {
    const bundle = join(work, runtime);
    mkdirSync(bundle, { recursive: true });
    try {
      execFileSync(runtime, ["spec"], { cwd: bundle, stdio: "ignore" });
    } catch {
      // Reported by `offer`, which will not find a configuration.
      return;
    }
    const path = join(bundle, "config.json");
    const config = JSON.parse(readFileSync(path, "utf8")) as { process: { terminal: boolean; args: string[]; rlimits?: unknown }; root: { path: string; readonly: boolean } };
    config.process.terminal = false;
    config.process.args = ["/bin/true"];
    delete config.process.rlimits;
    config.root = { path: join(work, "merged"), readonly: false };
    writeFileSync(path, JSON.stringify(config));
    const sleeper = join(work, `${runtime}-sleeper`);
    mkdirSync(sleeper, { recursive: true });
    config.process.args = ["/bin/sleep", "1000000"];
    writeFileSync(join(sleeper, "config.json"), JSON.stringify(config));
  }

  /** One command in the private mount namespace: start the container, time exec in it, delete it. */
  function timeExec(runtime: string, count: number): readonly number[] {
    const state = join(work, "state", runtime);
    const id = `bench-exec-${runtime}`;
    const script = `${runtime} --root ${state} run --detach --bundle ${work}/${runtime}-sleeper ${id} </dev/null >/dev/null 2>${work}/${runtime}.err || { cat ${work}/${runtime}.err >&2; exit 1; }; ${timer} ${count} ${runtime} --root ${state} exec ${id} /bin/true; code=$?; ${runtime} --root ${state} delete --force ${id}; exit $code`;
    const [program, ...args] = [...enter, "sh", "-c", script];
    const result = spawnSync(program, args, { encoding: "utf8", cwd: work });
    if (result.status !== 0) throw new Error(`${runtime} exec: ${result.stderr.trim()}`);
    return result.stdout.trim().split("\n").map((line) => Number(line) / 1000);
  }
}

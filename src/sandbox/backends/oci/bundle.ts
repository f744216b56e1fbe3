/**
 * A machine as an OCI bundle: a directory with `config.json`, and beside it what its root is an overlay of.
 *
 *   upper/    what it writes: its workspace once sealed
 *   work/     the overlay's; work-N for parts
 *   skel/     lowest layer: what a machine needs and an image may lack
 *   l/NNN     links to the layers, so that no name of theirs is an option's
 *   rootfs/   where the overlay is mounted, in the machine's own mount namespace
 */
import { chmodSync, chownSync, copyFileSync, existsSync, mkdirSync, readFileSync, statSync, symlinkSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { MwError } from "../../../core/errors.ts";
import type { SandboxId } from "../../../core/ids.ts";
import type { SandboxSpec, Service } from "../../sandbox.ts";
import { loadCapabilitySets } from "../native/capabilities.ts";
import { layeredParts } from "../native/layered-parts.ts";
import { nativePrograms } from "../native/programs.ts";
import { compiledFilter } from "../native/start-spawner.ts";
import { heldByGroups } from "./control-groups.ts";

const MiB = 1024 * 1024;
/** Runtimes need this much until init runs. */
export const START_MEMORY_BYTES = 64 * MiB;
const CPU_PERIOD_US = 100_000;
const OPEN_FILES = 65_536;
const DEFAULT_HOSTNAME = "sandbox";

/** What every machine of one controller has: init and the file helper, the system call filter, and a `/sys` with nothing in it. */
export interface CommonParts {
  readonly programs: string;
  readonly sys: string;
}

const SHOWN_OF_SYS = ["/sys/devices/system/cpu", "/sys/devices/system/node"];

/** Made once for a controller, below `directory`. */
export function makeCommonParts(directory: string): CommonParts {
  const [programs, sys] = [join(directory, "programs"), join(directory, "sys")];
  const { init, files } = nativePrograms();
  if (files === null) throw new MwError("environment", "The native program files is not built", { fix: "Run `npm run build`." });
  makeDirectory(programs, 0o711);
  for (const [from, name, mode] of [[init, "init", 0o711], [files, "files", 0o755]] as const) {
    copyFileSync(from, join(programs, name));
    chmodSync(join(programs, name), mode);
  }
  writeFileSync(join(programs, "filter"), compiledFilter());
  for (const path of ["", "fs", "devices", "devices/system", ...SHOWN_OF_SYS.filter((shown) => existsSync(shown)).map((shown) => shown.slice("/sys/".length))]) makeDirectory(join(sys, path), 0o555);
  return { programs, sys };
}

/** What a machine stands on beside its image. */
export interface BundleGround {
  /** Upper directories of workspaces, topmost first. */
  readonly workspaces: readonly string[];
  readonly common: CommonParts;
  /** Of the control group, in every hierarchy. */
  readonly group: string;
  readonly services: readonly Service[];
}

/** Directories below a machine's workspaces, topmost first. */
export function layersOf(spec: SandboxSpec): readonly string[] {
  return [...(spec.layers ?? []).map((layer) => layer.path), ...spec.root.layers];
}

/** Makes the bundle in an empty directory; returns how its root is mounted and its network made, in the words of native/oci.c. Throws `invalid_image` for layers that are not there. */
export function makeBundle(directory: string, id: SandboxId, spec: SandboxSpec, ground: BundleGround): readonly string[] {
  const layers = layersOf(spec);
  const parts = layeredParts(spec.layers ?? [], spec.root.parts, ground.workspaces);
  for (const layer of [...layers, ...parts.flatMap((part) => part.layers)]) {
    if (statSync(layer, { throwIfNoEntry: false })?.isDirectory() !== true) throw new MwError("invalid_image", `The layer ${layer} is not a directory`);
  }
  for (const name of ["upper", "work", "rootfs", "l"]) makeDirectory(join(directory, name), 0o755);
  makeSkeleton(join(directory, "skel"), spec.hostname ?? DEFAULT_HOSTNAME);
  const links = new Links(directory);
  const below = [...ground.workspaces, ...layers];
  likeDirectory(join(directory, "upper"), below[0] ?? "/");
  const setup = ["--root", overlay([...links.to(below), "skel"], "upper", "work")];
  parts.forEach(({ target, layers: own }, index) => {
    const [upper, work] = [`upper${target}`, `work-${index}`];
    for (const path of pathsTo(target)) makeDirectory(join(directory, "upper", path), 0o755);
    likeDirectory(join(directory, upper), own[0] ?? "/");
    makeDirectory(join(directory, work), 0o755);
    setup.push("--part", target.slice(1), overlay(links.to(own), upper, work));
  });
  setup.push("--network", "--name", id, ...ground.services.flatMap(({ port, target: socket }) => ["--service", String(port), socket]));
  writeFileSync(join(directory, "config.json"), JSON.stringify(configOf(id, spec, ground)));
  return setup;
}

/** Spelled out, because their defaults are a choice of each kernel's builder. */
function overlay(lowers: readonly string[], upper: string, work: string): string {
  return `lowerdir=${lowers.join(":")},upperdir=${upper},workdir=${work},redirect_dir=nofollow,index=off,metacopy=off`;
}

class Links {
  readonly #directory: string;
  #count = 0;

  constructor(directory: string) {
    this.#directory = directory;
  }

  to(paths: readonly string[]): readonly string[] {
    return paths.map((path) => {
      const link = `l/${String(this.#count++).padStart(3, "0")}`;
      symlinkSync(path, join(this.#directory, link));
      return link;
    });
  }
}

function makeSkeleton(directory: string, hostname: string): void {
  for (const [name, mode] of [["", 0o755], ["proc", 0o555], ["dev", 0o755], ["sys", 0o555], ["etc", 0o755], ["tmp", 0o1777]] as const) makeDirectory(join(directory, name), mode);
  writeFileSync(join(directory, "etc/hosts"), `127.0.0.1 localhost\n::1 localhost ip6-localhost ip6-loopback\n127.0.1.1 ${hostname}\n`, { mode: 0o644 });
  writeFileSync(join(directory, "etc/hostname"), `${hostname}\n`, { mode: 0o644 });
}

/** Whatever this process's mask is. */
function makeDirectory(path: string, mode: number): void {
  mkdirSync(path, { recursive: true });
  chmodSync(path, mode);
}

function likeDirectory(path: string, like: string): void {
  const { uid, gid, mode } = statSync(like);
  chownSync(path, uid, gid);
  chmodSync(path, mode & 0o7777);
}

function pathsTo(target: string): readonly string[] {
  return dirname(target) === "/" ? [target] : [...pathsTo(dirname(target)), target];
}

function configOf(id: SandboxId, spec: SandboxSpec, { common, group }: BundleGround): unknown {
  const kept = loadCapabilitySets().keep.flatMap(({ names }) => names).map((name) => `CAP_${name}`);
  return {
    ociVersion: "1.0.2",
    process: {
      terminal: false,
      user: { uid: 0, gid: 0 },
      args: ["/dev/.mw/init", "--filter", "/dev/.mw/filter"],
      env: [],
      cwd: "/",
      capabilities: { bounding: kept, effective: kept, permitted: kept, inheritable: [], ambient: [] },
      noNewPrivileges: true,
      rlimits: [
        { type: "RLIMIT_CORE", hard: 0, soft: 0 },
        { type: "RLIMIT_NOFILE", hard: openFiles(), soft: openFiles() },
      ],
      // A host that runs out of memory is to kill in machines before it kills the controller.
      oomScoreAdj: 500,
    },
    root: { path: "rootfs", readonly: false },
    hostname: spec.hostname ?? DEFAULT_HOSTNAME,
    mounts: [
      { destination: "/proc", type: "proc", source: "proc", options: ["nosuid", "noexec", "nodev"] },
      { destination: "/dev", type: "tmpfs", source: "tmpfs", options: ["nosuid", "noexec", "strictatime", "mode=755", "size=65536k", "nr_inodes=4096"] },
      { destination: "/dev/pts", type: "devpts", source: "devpts", options: ["nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620", "gid=5"] },
      { destination: "/dev/shm", type: "tmpfs", source: "shm", options: ["nosuid", "nodev", "mode=1777", "size=65536k"] },
      { destination: "/dev/.mw", type: "bind", source: common.programs, options: ["bind", "ro", "nosuid", "nodev"] },
      { destination: "/sys", type: "bind", source: common.sys, options: ["bind", "ro", "nosuid", "nodev", "noexec"] },
      ...SHOWN_OF_SYS.filter((path) => existsSync(path)).map((path) => ({ destination: path, type: "bind", source: path, options: ["bind", "ro", "nosuid", "nodev", "noexec"] })),
    ],
    linux: {
      // The network is the one that the runtime is started in.
      namespaces: ["pid", "ipc", "uts", "mount", "cgroup"].map((type) => ({ type })),
      cgroupsPath: join("/", group, id),
      resources: { devices: [{ allow: false, access: "rwm" }], ...limitsOf(spec) },
      // Memory that nobody has any more would be held until the machine's end: segments go with their last user, queues are few.
      sysctl: { "kernel.shm_rmid_forced": "1", "kernel.msgmni": "256" },
      maskedPaths: ["/proc/acpi", "/proc/asound", "/proc/kcore", "/proc/kmsg", "/proc/keys", "/proc/key-users", "/proc/timer_list", "/proc/sched_debug", "/proc/kallsyms", "/proc/latency_stats", "/proc/kpagecount", "/proc/kpageflags", "/proc/kpagecgroup", "/proc/scsi"],
      readonlyPaths: ["/proc/sys", "/proc/sysrq-trigger", "/proc/irq", "/proc/bus", "/proc/fs"],
    },
  };
}

/** No more than this process may have. */
function openFiles(): number {
  const own = Number(/^Max open files +\d+ +(\d+)/m.exec(readFileSync("/proc/self/limits", "utf8"))?.[1]);
  return own > 0 ? Math.min(own, OPEN_FILES) : OPEN_FILES;
}

function limitsOf({ cpus, memoryBytes, pids }: SandboxSpec): Readonly<Record<string, unknown>> {
  const memory = memoryBytes === undefined ? 0 : Math.max(memoryBytes, START_MEMORY_BYTES);
  return {
    ...(cpus === undefined ? {} : { cpu: { quota: Math.round(cpus * CPU_PERIOD_US), period: CPU_PERIOD_US } }),
    ...(memoryBytes === undefined ? {} : { memory: { limit: memory, ...(heldByGroups().swap ? { swap: memory } : {}) } }),
    ...(pids === undefined ? {} : { pids: { limit: pids } }),
  };
}

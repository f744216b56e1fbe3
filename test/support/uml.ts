/**
 * Another kernel, as a process: User-Mode Linux (Debian's `user-mode-linux`). Its root is this host's, read-only; its control groups are pure v2; it has one CPU. No
 * emulation: programs run as they are, and only their system calls go to the other kernel. https://docs.kernel.org/virt/uml/user_mode_linux_howto_v2.html
 */
import { spawn } from "node:child_process";
import { existsSync, mkdirSync, mkdtempSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { fileURLToPath } from "node:url";

const KERNEL = "/usr/bin/linux.uml";
const CHECKOUT = fileURLToPath(new URL("../../", import.meta.url)).replace(/\/$/, "");

export const hasOtherKernel = (): boolean => existsSync(KERNEL);

export interface Booted {
  /** Of the job; null when it never came to its end. */
  readonly code: number | null;
  readonly log: string;
  /** A file that the job left in $OUT. */
  read(name: string): string;
}

/** Boots it, runs `job` (a shell script) in the checkout as root, with $OUT (what is left for us), $CHECKOUT, $HOME and $TMPDIR, and waits until it halts. */
export async function boot(place: string, job: string): Promise<Booted> {
  const out = mkdtempSync(join(place, "uml-"));
  const memory = join(out, "memory");
  mkdirSync(memory);
  writeFileSync(join(out, "job.sh"), job);
  const flags = ["mem=4G", "rootfstype=hostfs", "rootflags=/", "ro", `init=${CHECKOUT}/test/support/uml-init.sh`, `out=${out}`, `checkout=${CHECKOUT}`, "con=null", "con0=null,fd:1", "quiet"];
  const child = spawn("nice", [KERNEL, ...flags], { stdio: ["ignore", "pipe", "pipe"], env: { PATH: process.env["PATH"] ?? "", TMPDIR: memory, HOME: memory } });
  let console = "";
  for (const stream of [child.stdout, child.stderr]) stream.setEncoding("utf8").on("data", (text: string) => (console = (console + text).slice(-20_000)));
  await new Promise((resolve, reject) => child.once("close", resolve).once("error", reject));
  const read = (name: string): string => (existsSync(join(out, name)) ? readFileSync(join(out, name), "utf8") : "");
  const code = read("code").trim();
  return { code: code === "" ? null : Number(code), log: `${read("log")}\n${console}`, read };
}

/**
 * Why it cannot come up on this host, or null. The kernel of Debian 12 holds the floating-point state of its processes in room of a fixed size, which that of processors with wider
 * registers (AMX) does not fit into: then every first process dies in `put_fp_registers`, before anything of ours runs. Any other failure to boot is one.
 */
export async function cannotBoot(place: string): Promise<string | null> {
  const { code, log } = await boot(place, "exit 0\n");
  return code === null && log.includes("put_fp_registers") ? "this processor's registers are wider than the User-Mode Linux of this distribution can hold" : null;
}

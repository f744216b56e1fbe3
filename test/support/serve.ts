/** `mw serve` as a process of its own, on a free port of loopback. */
import { spawn, type ChildProcess } from "node:child_process";
import { fileURLToPath } from "node:url";

const MAIN = fileURLToPath(new URL("../../dist/cli/main.js", import.meta.url));

/** Long enough for any load. */
const START_MS = 150_000;

export interface Served {
  readonly url: string;
  readonly port: number;
  readonly keyFile: string | null;
  readonly process: ChildProcess;
  readonly stderr: () => string;
  /** Sends a signal and gives the exit code once the process has ended; null after SIGKILL. */
  stop(signal?: NodeJS.Signals): Promise<number | null>;
}

export interface ServeOptions {
  readonly home: string;
  /** `MW_API_KEY`. */
  readonly key?: string;
  readonly port?: number;
  readonly args?: readonly string[];
  readonly env?: NodeJS.ProcessEnv;
}

export async function serve({ home, key, port = 0, args = [], env = {} }: ServeOptions): Promise<Served> {
  const child = spawn(process.execPath, [MAIN, "serve", "--data", home, "--port", String(port), "--json", ...args], {
    env: { PATH: process.env["PATH"], HOME: home, ...(key === undefined ? {} : { MW_API_KEY: key }), ...env },
    stdio: ["ignore", "pipe", "pipe"],
  });
  let stdout = "";
  let stderr = "";
  child.stderr.on("data", (data: Buffer) => (stderr += data.toString()));
  const exited = new Promise<number | null>((resolve) => child.once("close", (code) => resolve(code)));
  // One that neither serves nor ends is ended here: it would outlive the test.
  const late = setTimeout(() => child.kill("SIGKILL"), START_MS);
  await new Promise<void>((resolve, reject) => {
    child.stdout.on("data", (data: Buffer) => {
      stdout += data.toString();
      if (stdout.endsWith("}\n")) resolve();
    });
    void exited.then((code) => reject(new Error(`mw serve ended with ${code}: ${stderr}`)));
  }).finally(() => clearTimeout(late));
  const { url, keyFile } = JSON.parse(stdout) as { url: string; keyFile: string | null };
  return {
    url,
    port: Number(new URL(url).port),
    keyFile,
    process: child,
    stderr: () => stderr,
    stop: (signal = "SIGTERM") => {
      child.kill(signal);
      return exited;
    },
  };
}

/** The peer: LiteLLM's proxy in front of the same engine, from a Python environment that is made on first use. */
import { execFileSync, spawn, type ChildProcess } from "node:child_process";
import { existsSync, mkdirSync, writeFileSync } from "node:fs";
import { createServer, type AddressInfo } from "node:net";
import { homedir } from "node:os";
import { join } from "node:path";

const VERSION = "1.84.1";

export interface Peer {
  readonly url: string;
  close(): void;
}

/** Null, with the reason on stderr, where it cannot be had. */
export async function startLitellm(engine: string): Promise<Peer | null> {
  const cache = process.env["MW_BENCH_CACHE"] ?? join(process.env["XDG_CACHE_HOME"] ?? join(homedir(), ".cache"), "manyworlds-bench");
  const environment = join(cache, `litellm-${VERSION}`);
  try {
    if (!existsSync(join(environment, "bin/litellm"))) {
      process.stderr.write(`Installing LiteLLM ${VERSION} into ${environment} ...\n`);
      mkdirSync(cache, { recursive: true });
      execFileSync("python3", ["-m", "venv", environment], { stdio: "ignore" });
      execFileSync(join(environment, "bin/pip"), ["install", "-q", `litellm[proxy]==${VERSION}`], { stdio: ["ignore", "ignore", "pipe"] });
    }
    return await run(environment, engine);
  } catch (error) {
    process.stderr.write(`LiteLLM is left out: ${error instanceof Error ? error.message.slice(0, 500) : String(error)}\n`);
    return null;
  }
}

async function run(environment: string, engine: string): Promise<Peer> {
  const config = join(environment, "bench.yaml");
  writeFileSync(config, `model_list:\n  - model_name: test-model\n    litellm_params:\n      model: openai/test-model\n      api_base: ${engine}/v1\n      api_key: none\n`);
  const port = await freePort();
  const child: ChildProcess = spawn(join(environment, "bin/litellm"), ["--config", config, "--port", String(port), "--host", "127.0.0.1", "--num_workers", "1"], {
    stdio: "ignore",
    env: { ...process.env, PATH: `${environment}/bin:${process.env["PATH"] ?? ""}`, LITELLM_LOCAL_MODEL_COST_MAP: "True", LITELLM_LOG: "ERROR" },
  });
  const url = `http://127.0.0.1:${port}`;
  const close = (): void => void child.kill("SIGKILL");
  let broken: Error | null = null;
  child.once("error", (error) => (broken = error));
  for (let tries = 0; tries < 120; tries++) {
    if (broken !== null) throw broken;
    if (child.exitCode !== null) throw new Error(`it ended with exit code ${child.exitCode}`);
    const alive = await fetch(`${url}/health/liveliness`).then(
      (response) => response.ok,
      () => false,
    );
    if (alive) return { url, close };
    await new Promise((resolve) => setTimeout(resolve, 1_000));
  }
  close();
  throw new Error("it did not start within two minutes");
}

function freePort(): Promise<number> {
  return new Promise((resolve) => {
    const server = createServer().listen(0, "127.0.0.1", () => {
      const { port } = server.address() as AddressInfo;
      server.close(() => resolve(port));
    });
  });
}

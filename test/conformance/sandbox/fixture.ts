/** One backend per group of tests, machines that are killed after each test, and short forms for running commands and reading their text. */
import { afterAll, afterEach, beforeAll, expect, test, type TestContext } from "vitest";
import type { Capabilities, ExecOptions, ExecResult, Sandbox, SandboxBackend, SandboxSpec } from "../../../src/sandbox/sandbox.ts";
import type { ConformanceOptions } from "./suite.ts";

export interface Fixture {
  readonly backend: () => SandboxBackend;
  /** A fresh machine, killed when the test ends. */
  machine(spec?: Partial<SandboxSpec>): Promise<Sandbox>;
  /** One machine for all tests of the group that leave it as it was. */
  shared(): Promise<Sandbox>;
  /** A test of what a backend need not have: where it has not, the body is not run, but `refused`, and that the reason is given. */
  having(capability: Optional, refused: () => Promise<void>): (name: string, body: (context: TestContext) => Promise<void>, timeoutMs?: number) => void;
}

type Optional = { [Name in keyof Capabilities]: Capabilities[Name] extends boolean ? Name : never }[keyof Capabilities];

export function fixture(options: ConformanceOptions): Fixture {
  let backend: SandboxBackend | null = null;
  let common: Promise<Sandbox> | null = null;
  const mine: Sandbox[] = [];
  beforeAll(async () => {
    backend = await options.open();
  });
  afterEach(async () => {
    await Promise.all(mine.splice(0).map((sandbox) => sandbox.kill()));
  });
  afterAll(async () => {
    await backend?.close();
  });
  const opened = (): SandboxBackend => {
    if (backend === null) throw new Error("The backend is not open yet.");
    return backend;
  };
  return {
    backend: opened,
    async machine(spec = {}) {
      const sandbox = await opened().create({ root: options.root(), ...spec });
      mine.push(sandbox);
      return sandbox;
    },
    async shared() {
      common ??= opened().create({ root: options.root() });
      return common;
    },
    having: (capability, refused) => (name, body, timeoutMs) =>
      test(
        name,
        async (context) => {
          if (opened().capabilities[capability]) return body(context);
          await refused();
          expect(opened().capabilities.missing[capability]).toBeTruthy();
          await context.annotate(`${capability} is absent here (${opened().capabilities.missing[capability]}): asserted as refused`);
        },
        timeoutMs,
      ),
  };
}

export interface TextResult extends ExecResult {
  readonly out: string;
  readonly err: string;
}

export const text = (bytes: Uint8Array): string => Buffer.from(bytes).toString("utf8");

/** Runs a command (a string goes to the shell) and adds its output as text. */
export async function sh(sandbox: Sandbox, command: ExecOptions["command"], options: Omit<ExecOptions, "command"> = {}): Promise<TextResult> {
  const result = await sandbox.run({ timeoutMs: 120_000, ...options, command });
  return { ...result, out: text(result.stdout), err: text(result.stderr) };
}

export const sleep = (ms: number): Promise<void> => new Promise((resolve) => setTimeout(resolve, ms));

/** Polls until `check` gives something truthy; its last value, or throws. */
export async function until<T>(what: string, check: () => Promise<T> | T, timeoutMs = 60_000): Promise<T> {
  const end = performance.now() + timeoutMs;
  for (;;) {
    const value = await check();
    if (value) return value;
    if (performance.now() > end) throw new Error(`Not in ${timeoutMs} ms: ${what}.`);
    await sleep(20);
  }
}

/** Numbers of processes inside whose command line contains `needle`; the caller's own shell is left out by bracketing in the pattern. */
export async function pidsOf(sandbox: Sandbox, needle: string): Promise<readonly string[]> {
  const { out } = await sh(sandbox, ["/bin/sh", "-c", 'for p in /proc/[0-9]*; do c=$(tr "\\0" " " <$p/cmdline 2>/dev/null); case "$c" in *"$N"*) [ "${p#/proc/}" = $$ ] || echo "${p#/proc/}";; esac; done', "sh"], { env: { N: needle } });
  return out.trim().split("\n").filter((line) => line !== "");
}

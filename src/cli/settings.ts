/**
 * Every setting that can come from a flag, the environment or a file, in one table. Flags > `MW_*` > the project's `manyworlds.toml` > the user's `config.toml` >
 * defaults. Secrets are no settings: keys are read from the environment or a key file by the command that needs them.
 */
import { availableParallelism } from "node:os";
import { LIMITS } from "../core/limits.ts";
import { backendParser, bytesParser, choiceParser, decimalParser, durationParser, integerParser, pricesText, textParser } from "./parsers.ts";

export interface SettingDefinition<T> {
  /** Name of the environment variable. */
  readonly env: string;
  /** Dotted key in a configuration file. */
  readonly key: string;
  readonly parse: (text: string) => T;
  /** Absent: the setting has no value unless somebody gives one. */
  readonly fallback: T | (() => T) | null;
  readonly brief: string;
  /** A relative path in a file is relative to that file; elsewhere to the working directory. */
  readonly path?: boolean;
}

const define = <T>(definition: SettingDefinition<T>): SettingDefinition<T> => definition;

export const SETTINGS = {
  durability: define<"process" | "power">({
    env: "MW_DURABILITY",
    key: "durability",
    parse: choiceParser(["process", "power"]),
    fallback: "process",
    brief: "what a recorded event survives: the death of any process (process), or also a power cut (power)",
  }),
  backend: define<string>({ env: "MW_BACKEND", key: "backend", parse: backendParser, fallback: "native", brief: "what makes the machines: native, oci[:RUNTIME] (runc, crun), or remote:URL for an E2B-compatible service (its key in MW_REMOTE_KEY)" }),
  harness: define<string>({ env: "MW_HARNESS", key: "run.harness", parse: textParser, fallback: "bash", brief: "who works on the task: bash, claude-like, codex-like, gemini-like, opencode-like, fenced, drawn, oracle, nop, script, generic or an agent CLI of mw harness ls; of several, separated by commas, each rollout draws one by seed" }),
  upstream: define<string>({ env: "MW_UPSTREAM", key: "run.upstream", parse: textParser, fallback: null, brief: "model server: its base URL, or vllm=, sglang=, openai= and the URL" }),
  model: define<string>({ env: "MW_MODEL", key: "run.model", parse: textParser, fallback: null, brief: "model name sent to the upstream" }),
  tokenizer: define<string>({ env: "MW_TOKENIZER", key: "run.tokenizer", parse: textParser, fallback: null, brief: "directory with the model's tokenizer and chat template: prompts are rendered here and extend the recorded tokens exactly", path: true }),
  family: define<string>({ env: "MW_FAMILY", key: "run.family", parse: textParser, fallback: null, brief: "model family of --tokenizer, where its template does not tell" }),
  apiKeyFile: define<string>({ env: "MW_API_KEY_FILE", key: "run.api-key-file", parse: textParser, fallback: null, brief: "file that holds the upstream's API key (else MW_API_KEY)", path: true }),
  price: define<string>({ env: "MW_PRICE", key: "run.price", parse: pricesText, fallback: null, brief: "what is paid, in dollars: input=, cached= and output= a million tokens, machine= an hour of a machine; without prices nothing is said of money" }),
  attempts: define<number>({ env: "MW_ATTEMPTS", key: "run.attempts", parse: integerParser(1, LIMITS.attemptsPerTask), fallback: 1, brief: "attempts at each task" }),
  concurrency: define<number>({
    env: "MW_CONCURRENCY",
    key: "run.concurrency",
    parse: integerParser(1, LIMITS.sandboxesPerHost / 2),
    fallback: () => Math.min(LIMITS.sandboxesPerHost / 2, availableParallelism() * 4),
    brief: "rollouts alive at once",
  }),
  seed: define<string>({ env: "MW_SEED", key: "run.seed", parse: textParser, fallback: null, brief: "seed of everything that is drawn; without one it is drawn and recorded" }),
  temperature: define<number>({ env: "MW_TEMPERATURE", key: "run.temperature", parse: decimalParser(0, 100), fallback: null, brief: "sampling temperature" }),
  topP: define<number>({ env: "MW_TOP_P", key: "run.top-p", parse: decimalParser(0, 1), fallback: null, brief: "nucleus sampling mass" }),
  samplingSeed: define<number>({ env: "MW_SAMPLING_SEED", key: "run.sampling-seed", parse: integerParser(0, 2 ** 31 - 1), fallback: null, brief: "seed of the server's sampling; each rollout is given one of its own, drawn from this and --seed" }),
  maxTokens: define<number>({ env: "MW_MAX_TOKENS", key: "run.max-tokens", parse: integerParser(1, 100_000_000), fallback: null, brief: "tokens sampled in one model call" }),
  maxTurns: define<number>({ env: "MW_MAX_TURNS", key: "run.max-turns", parse: integerParser(1, 100_000), fallback: 100, brief: "turns of one rollout" }),
  tokenBudget: define<number>({ env: "MW_TOKEN_BUDGET", key: "run.token-budget", parse: integerParser(1, 1_000_000_000), fallback: null, brief: "tokens sampled in one rollout" }),
  commandTimeout: define<number>({ env: "MW_COMMAND_TIMEOUT", key: "run.command-timeout", parse: durationParser, fallback: 300_000, brief: "time of one command of the bash harness, such as 90s or 5m" }),
  network: define<"none" | "allowlist" | "public">({ env: "MW_NETWORK", key: "run.network", parse: choiceParser(["none", "allowlist", "public"]), fallback: null, brief: "network of every machine (none, allowlist or public), instead of what tasks declare" }),
  maxSandboxes: define<number>({ env: "MW_MAX_SANDBOXES", key: "serve.max-sandboxes", parse: integerParser(1, LIMITS.sandboxesPerHost), fallback: LIMITS.sandboxesPerHost, brief: "sandboxes of mw serve's clients that live at once; more wait their turn" }),
  maxSandboxesPerOwner: define<number>({ env: "MW_MAX_SANDBOXES_PER_OWNER", key: "serve.max-sandboxes-per-owner", parse: integerParser(1, LIMITS.sandboxesPerHost), fallback: null, brief: "the same of one owner; more are refused" }),
  maxSnapshotsPerOwner: define<number>({ env: "MW_MAX_SNAPSHOTS_PER_OWNER", key: "serve.max-snapshots-per-owner", parse: integerParser(0, 1_000_000), fallback: null, brief: "snapshots that one owner keeps at mw serve; more are refused" }),
  maxDiskPerOwner: define<number>({ env: "MW_MAX_DISK_PER_OWNER", key: "serve.max-disk-per-owner", parse: bytesParser, fallback: null, brief: "disk of one owner at mw serve, such as 100G: what its snapshots and paused sandboxes hold and its sandboxes may write; more is refused" }),
  warmSandboxes: define<number>({ env: "MW_WARM_SANDBOXES", key: "serve.warm-sandboxes", parse: integerParser(0, LIMITS.warmSandboxes), fallback: 16, brief: "sandboxes that mw serve keeps ready, of the kinds that are asked for; 0: none" }),
  timeoutMultiplier: define<number>({ env: "MW_TIMEOUT_MULTIPLIER", key: "run.timeout-multiplier", parse: decimalParser(0.01, 1000), fallback: 1, brief: "factor on the time limits of tasks" }),
} as const;

export type SettingName = keyof typeof SETTINGS;
export type SettingValue<Name extends SettingName> = (typeof SETTINGS)[Name] extends SettingDefinition<infer T> ? T : never;

/** Tables of files whose keys are free: image names map to image names. */
export const FREE_TABLES = ["image.aliases"] as const;

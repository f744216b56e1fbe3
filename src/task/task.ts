/**
 * A task: instruction, environment, verifier, reference solution, limits. Read from Harbor directories (schema 1.0 to 1.4); everything in `task.toml` is honoured
 * or refused by name before anything starts. Our additions live in `[metadata.manyworlds]`.
 */
import type { Isolation, NetworkMode } from "../sandbox/sandbox.ts";

export interface HealthCheck {
  readonly command: string;
  readonly intervalMs: number;
  readonly timeoutMs: number;
  readonly startPeriodMs: number;
  readonly startIntervalMs: number;
  readonly retries: number;
}

/** What is copied out of the machine after the agent: to `destination` below the rollout's `artifacts/`. */
export interface ArtifactRule {
  readonly source: string;
  readonly destination: string;
  readonly exclude: readonly string[];
  /** Compose service that it comes from; null is the agent's machine. */
  readonly service: string | null;
}

/** A tool server that the task gives to the agent. */
export interface McpServer {
  readonly name: string;
  readonly transport: "stdio" | "sse" | "streamable-http";
  readonly url: string | null;
  readonly command: string | null;
  readonly args: readonly string[];
  readonly headers: Readonly<Record<string, string>>;
}

export interface TaskEnvironment {
  /** Reference of a ready image, or null when `environment/Dockerfile` is built. */
  readonly image: string | null;
  /** Absolute path of the Dockerfile, when there is one. */
  readonly dockerfile: string | null;
  /** Absolute path of the build context. Without a Dockerfile its files are uploaded into the workdir at start. */
  readonly context: string;
  readonly buildTimeoutMs: number;
  readonly cpus: number | null;
  readonly memoryBytes: number | null;
  readonly diskBytes: number | null;
  /** With `${VAR}` and `${VAR:-default}` still in place; `expandPlaceholders` resolves them at start. */
  readonly env: Readonly<Record<string, string>>;
  readonly workdir: string | null;
  readonly healthcheck: HealthCheck | null;
  /** As the task declares it: the baseline of all phases (`network.ts`). */
  readonly network: NetworkMode;
  readonly allowedHosts: readonly string[];
  readonly os: "linux" | "windows";
  readonly gpus: number;
  readonly gpuTypes: readonly string[];
  readonly tpu: { readonly type: string; readonly topology: string } | null;
  readonly mcpServers: readonly McpServer[];
  /** Directory of the machine whose content goes to the agent's skills. */
  readonly skillsDir: string | null;
  /** Absolute path of a compose file, when there is one. */
  readonly composeFile: string | null;
}

/** A command started again in the fresh sandbox before the tests, for tasks whose work is a running service. */
export interface TaskService {
  readonly command: string;
  readonly user: string | null;
  readonly workdir: string | null;
  readonly readyCommand: string | null;
  readonly readyTimeoutMs: number;
}

/** A command that runs in the agent's machine after the agent, to write living state to files. */
export interface CollectHook {
  readonly command: string;
  readonly timeoutMs: number;
  readonly user: string | null;
  /** Compose service; null is the agent's machine. */
  readonly service: string | null;
}

export interface TaskVerifier {
  readonly timeoutMs: number;
  readonly env: Readonly<Record<string, string>>;
  readonly user: string | null;
  /**
   * `fresh`: a new sandbox with the agent's workspace (Harbor's omitted mode and `shared`, unless declared survivors need the living machine).
   * `shared`: in the agent's machine, hardened. `separate`: its own environment, only artifacts cross.
   */
  readonly mode: "fresh" | "shared" | "separate";
  readonly environment: TaskEnvironment | null;
  /** What `[verifier] environment_mode` says; null when omitted. `mode` is what follows from it. */
  readonly declaredMode: "shared" | "separate" | null;
  /** True when the separate environment's image has its own `/tests`: nothing is uploaded. */
  readonly bundledTests: boolean;
  /** Null: not declared. */
  readonly network: NetworkMode | null;
  readonly allowedHosts: readonly string[];
  readonly collect: readonly CollectHook[];
  /** Paths (absolute, may end in `/**`) of executables and configuration that the task declares to be the agent's work: not restored from the image. */
  readonly agentOwns: readonly string[];
  readonly services: readonly TaskService[];
  /** Executables (absolute, may end in `/**`) whose processes are the agent's work and live on while the tests run: the task is then verified in place. */
  readonly survivors: readonly string[];
}

export interface TaskStep {
  readonly name: string;
  readonly instruction: string;
  readonly agentTimeoutMs: number | null;
  readonly agentUser: string | null;
  /** The step's own, else the task's; null: not declared. */
  readonly agentNetwork: NetworkMode | null;
  readonly agentAllowedHosts: readonly string[];
  readonly verifierTimeoutMs: number;
  /** The step's own verifier settings over the task's. */
  readonly verifier: TaskVerifier;
  readonly minReward: Readonly<Record<string, number>> | null;
  readonly healthcheck: HealthCheck | null;
  readonly artifacts: readonly ArtifactRule[];
  /** Host directories, null when absent. */
  readonly workdir: string | null;
  readonly tests: string | null;
  readonly solution: string | null;
}

export interface Task {
  /** As the task calls itself, else its directory's name. Any text. */
  readonly name: string;
  /** Group of tasks for reports: `[metadata.manyworlds] family`, else metadata category, else the parent directory's name. */
  readonly family: string;
  /** `sha256:...` as Harbor computes it. */
  readonly digest: string;
  /** Absolute path of the directory. */
  readonly directory: string;
  readonly schemaVersion: string;
  /** Exact text of the instruction, unstripped. Empty for multi-step tasks, whose steps have their own. */
  readonly instruction: string;
  readonly environment: TaskEnvironment;
  readonly agent: { readonly timeoutMs: number | null; readonly user: string | null; readonly network: NetworkMode | null; readonly allowedHosts: readonly string[] };
  readonly verifier: TaskVerifier;
  readonly solution: { readonly directory: string | null; readonly env: Readonly<Record<string, string>> };
  readonly tests: string | null;
  readonly artifacts: readonly ArtifactRule[];
  readonly steps: readonly TaskStep[];
  readonly multiStepReward: "mean" | "final";
  /** The image, the work or the tests need users besides root. */
  readonly needsUsers: boolean;
  readonly metadata: Readonly<Record<string, unknown>>;
  /** Unknown keys and oddities that do not stop it, each naming file and field. */
  readonly warnings: readonly string[];
  /** Conversation that the agent is to have had before, when the task ships one. */
  readonly trajectory: string | null;
}

/** What the verifier said. Never a bare number. */
export interface Verdict {
  readonly status: "scored" | "verifier_error";
  /** The reward under the key `reward`, else the only key; null unless scored. Finite. */
  readonly reward: number | null;
  readonly rewards: Readonly<Record<string, number>>;
  /** Which file the rewards came from: json wins over text, as in Harbor since May 2026. */
  readonly source: "reward.json" | "reward.txt" | "broken_by_agent" | null;
  /** Distinct reason of a verifier_error. */
  readonly error:
    | null
    | { readonly kind: "missing" | "empty" | "unparsable" | "not_finite" | "timeout" | "no_tests" | "tampered" | "crashed"; readonly message: string };
  readonly mode: TaskVerifier["mode"];
  readonly isolation: Isolation;
  readonly writtenAt: string;
  /** `sha256:...` over the tests that ran. */
  readonly verifierDigest: string;
  readonly exitCode: number | null;
  readonly durationMs: number;
  readonly evidence: {
    /** Paths of the image that the agent had changed and the verifier saw as the image has them. */
    readonly restored: readonly string[];
    /** Planted files taken away before verification. */
    readonly removed: readonly string[];
    /** Whether reward.json and reward.txt disagreed. */
    readonly conflict: boolean;
    /** When the verifier failed on the agent's workspace: what it did on a pristine one. */
    readonly pristine: "not_run" | "works" | "fails";
    readonly notes: readonly string[];
  };
}

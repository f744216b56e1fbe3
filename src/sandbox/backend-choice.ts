/** Which backend makes the machines, in one word: `native`, `oci:RUNTIME`, `remote:URL`. The word is recorded; keys are not part of it. */
import { MwError } from "../core/errors.ts";
import type { Runtime } from "../core/runtime.ts";
import type { SandboxBackend } from "./sandbox.ts";

export type BackendChoice =
  | { readonly kind: "native" }
  | {
      readonly kind: "oci";
      /** A name on PATH or an absolute path; null: runc, else crun. */
      readonly program: string | null;
    }
  | {
      readonly kind: "remote";
      /** Of the control plane. */
      readonly url: URL;
      /** What the service builds its template from; null: from nothing, and images are sent. */
      readonly from: string | null;
    };

/** Throws `invalid_input` for what names none. */
export function parseBackendChoice(text: string): BackendChoice {
  const [kind, rest] = splitOnce(text);
  if (kind === "native" && rest === null) return { kind };
  if (kind === "oci" && (rest === null || /^(\/[^\0]+|[\w.-]+)$/.test(rest))) return { kind, program: rest };
  if (kind === "remote" && rest !== null) return remoteChoice(rest, text);
  throw new MwError("invalid_input", `${JSON.stringify(text)} names no sandbox backend`, { fix: "write native, oci or oci:RUNTIME (a name on PATH, or an absolute path), or remote:URL for an E2B-compatible service" });
}

export interface OpenChoice {
  /** The data directory. */
  readonly home: string;
  readonly env: Readonly<Record<string, string | undefined>>;
  readonly runtime: Runtime;
  readonly log?: (line: string) => void;
}

/** Backends beside the native one, which each controller opens for itself. A service's key is in the environment, and nowhere else. */
export async function openChosenBackend(choice: Exclude<BackendChoice, { readonly kind: "native" }>, { home, env, runtime, log }: OpenChoice): Promise<SandboxBackend> {
  if (choice.kind === "oci") {
    const { openOciBackend } = await import("./backends/oci/backend.ts");
    return openOciBackend({ home, runtime, ...(choice.program === null ? {} : { program: choice.program }) });
  }
  const { openRemoteBackend } = await import("./backends/remote/backend.ts");
  const key = env["MW_REMOTE_KEY"] ?? env["E2B_API_KEY"] ?? "";
  if (key === "") throw new MwError("environment", `No key for the sandbox service at ${choice.url.origin}`, { fix: "set MW_REMOTE_KEY (or E2B_API_KEY); keys are read from the environment alone" });
  const data = env["MW_REMOTE_SANDBOX_URL"] ?? env["E2B_SANDBOX_URL"] ?? "";
  return openRemoteBackend({
    url: choice.url,
    key,
    runtime,
    ...(choice.from === null ? {} : { from: choice.from }),
    ...(data === "" ? {} : { sandboxUrl: httpUrl(data, "MW_REMOTE_SANDBOX_URL") }),
    ...(log === undefined ? {} : { log }),
  });
}

function remoteChoice(text: string, whole: string): BackendChoice {
  const url = httpUrl(text, whole);
  const from = url.searchParams.get("from");
  const others = [...url.searchParams.keys()].filter((name) => name !== "from");
  if (others.length > 0) throw new MwError("invalid_input", `${whole}: there is no option ${JSON.stringify(others[0])}`, { fix: "the only one is from=IMAGE" });
  url.search = "";
  url.hash = "";
  return { kind: "remote", url, from: from === "" ? null : from };
}

function httpUrl(text: string, whole: string): URL {
  const url = URL.canParse(text) ? new URL(text) : null;
  if (url === null || (url.protocol !== "http:" && url.protocol !== "https:")) throw new MwError("invalid_input", `${JSON.stringify(whole)} holds no http or https address`, { fix: "write remote:https://api.example.com" });
  if (url.username !== "" || url.password !== "") throw new MwError("invalid_input", "The address of a sandbox service holds a name or a password, which would be recorded", { fix: "leave it out; the key is read from MW_REMOTE_KEY" });
  return url;
}

function splitOnce(text: string): readonly [string, string | null] {
  const at = text.indexOf(":");
  return at < 0 ? [text, null] : [text.slice(0, at), text.slice(at + 1)];
}

/** What makes machines here beside the native backend: OCI runtimes, each with a machine that was made to see, and the service that is chosen. */
import { mkdtempSync, rmSync } from "node:fs";
import { join } from "node:path";
import { toMwError } from "../core/errors.ts";
import { type BackendChoice, type OpenChoice, openChosenBackend } from "./backend-choice.ts";
import { findRuntime, KNOWN_RUNTIMES } from "./backends/oci/runtime.ts";
import type { Probe } from "./doctor.ts";
import type { Capabilities, SandboxBackend } from "./sandbox.ts";

/** `open.home` is a directory that nobody else uses. `chosen` is asked, too, where it is no runtime that is looked for anyway. */
export async function probeBackends(chosen: BackendChoice, open: OpenChoice): Promise<readonly Probe[]> {
  const programs = new Set<string>([...KNOWN_RUNTIMES, ...(chosen.kind === "oci" && chosen.program !== null ? [chosen.program] : [])]);
  const probes: Probe[] = [];
  for (const program of programs) probes.push(await probed(`backend oci:${program}`, `apt-get install ${program}`, () => runtimeWorks(program, open)));
  if (chosen.kind === "remote") probes.push(await probed(`backend remote:${chosen.url.host}`, null, () => asked(chosen, open, async () => "")));
  return probes;
}

async function probed(name: string, fix: string | null, look: () => Promise<string>): Promise<Probe> {
  try {
    return { name, state: "ok", detail: await look(), fix: null };
  } catch (error) {
    const { message, fix: known } = toMwError(error);
    return { name, state: "absent", detail: message, fix: known ?? fix };
  }
}

async function runtimeWorks(program: string, open: OpenChoice): Promise<string> {
  const { version } = await findRuntime(program);
  return asked({ kind: "oci", program }, open, async (backend) => {
    const empty = mkdtempSync(join(open.home, "probe-"));
    try {
      const sandbox = await backend.create({ root: { digest: "probe", layers: [empty], parts: [], env: {}, user: "", workdir: "/", entrypoint: [], cmd: [] } });
      await sandbox.files.write("/probe", "made");
      await sandbox.kill();
      return `${version}; `;
    } finally {
      rmSync(empty, { recursive: true, force: true });
    }
  });
}

async function asked(choice: Exclude<BackendChoice, { readonly kind: "native" }>, open: OpenChoice, look: (backend: SandboxBackend) => Promise<string>): Promise<string> {
  const backend = await openChosenBackend(choice, open);
  try {
    return `${await look(backend)}${abilities(backend.capabilities)}`;
  } finally {
    await backend.close();
  }
}

/** In the words of `Capabilities`. */
function abilities({ isolation, networks, ...rest }: Capabilities): string {
  const all = [...Object.entries(isolation.enforced).map(([limit, held]) => [`${limit} limits`, held] as const), ...Object.entries(rest).filter((entry): entry is [string, boolean] => typeof entry[1] === "boolean")];
  const named = (wanted: boolean): string => all.filter(([, has]) => has === wanted).map(([name]) => name).join(", ");
  return `isolation ${isolation.profile}; networks ${networks.join(", ")}; has ${named(true)}; lacks ${named(false)}`;
}

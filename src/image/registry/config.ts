/** How a registry is reached and who we are there: `MW_HOME/registries.toml` and the credentials that `docker login` keeps. */
import { readFile } from "node:fs/promises";
import { join } from "node:path";
import { parse } from "smol-toml";
import { z } from "zod";
import { MwError, messageOf } from "../../core/errors.ts";
import { parseJson } from "../layers.ts";

type Env = Readonly<Record<string, string | undefined>>;

const Registries = z.record(z.string(), z.strictObject({ mirror: z.url().optional(), insecure: z.boolean().optional() }));

export interface RegistryEndpoint {
  readonly registry: string;
  /** Origin to talk to, without a slash at the end. */
  readonly origin: string;
  /** Plain HTTP was chosen, by the user or because the registry is this machine. */
  readonly insecure: boolean;
  /** Where the credentials are kept; absent for none. */
  readonly credentials: Credentials | null;
}

export type Credentials = { readonly kind: "basic"; readonly user: string; readonly password: string } | { readonly kind: "token"; readonly identityToken: string };

export async function registryEndpoint(registry: string, home: string, env: Env): Promise<RegistryEndpoint> {
  const file = join(home, "registries.toml");
  const settings = (await readSettings(file))[registry] ?? {};
  const credentials = await findCredentials(registry, env);
  if (settings.mirror !== undefined) {
    const mirror = new URL(settings.mirror);
    // Credentials of the registry are not for its mirror, unless the mirror has its own.
    return { registry, origin: mirror.href.replace(/\/$/, ""), insecure: mirror.protocol === "http:", credentials: await findCredentials(mirror.host, env) };
  }
  const host = registry === "docker.io" ? "registry-1.docker.io" : registry;
  const insecure = settings.insecure ?? isLoopback(registry);
  return { registry, origin: `${insecure ? "http" : "https"}://${host}`, insecure, credentials };
}

export function isLoopback(host: string): boolean {
  return /^(localhost|127(\.\d+){3}|\[::1\])(:\d+)?$/.test(host);
}

async function readSettings(file: string): Promise<z.infer<typeof Registries>> {
  const text = await readFile(file, "utf8").catch((error: NodeJS.ErrnoException) => {
    if (error.code === "ENOENT") return "";
    throw error;
  });
  try {
    return Registries.parse(parse(text));
  } catch (error) {
    const what = error instanceof z.ZodError ? z.prettifyError(error) : messageOf(error);
    throw new MwError("invalid_input", `${file} is malformed: ${what}`, { fix: 'write ["docker.io"] and below it mirror = "http://HOST:PORT", or insecure = true', cause: error });
  }
}

const DockerConfig = z.object({
  auths: z.record(z.string(), z.object({ auth: z.string().optional(), username: z.string().optional(), password: z.string().optional(), identitytoken: z.string().optional() })).optional(),
});

/** Only what stands in the file itself: credential helpers are programs and are not run. */
async function findCredentials(registry: string, env: Env): Promise<Credentials | null> {
  const directory = env["DOCKER_CONFIG"] ?? join(env["HOME"] ?? "/", ".docker");
  const text = await readFile(join(directory, "config.json"), "utf8").catch(() => null);
  if (text === null) return null;
  const config = DockerConfig.safeParse(parseJson(text));
  if (!config.success) return null;
  const keys = [registry, `https://${registry}`, `https://${registry}/`, `https://${registry}/v1/`, `https://${registry}/v2/`, ...(registry === "docker.io" ? ["https://index.docker.io/v1/", "index.docker.io"] : [])];
  const entry = keys.map((key) => config.data.auths?.[key]).find((found) => found !== undefined);
  if (entry === undefined) return null;
  if (entry.identitytoken !== undefined && entry.identitytoken !== "") return { kind: "token", identityToken: entry.identitytoken };
  if (entry.username !== undefined && entry.password !== undefined) return { kind: "basic", user: entry.username, password: entry.password };
  const plain = Buffer.from(entry.auth ?? "", "base64").toString();
  const colon = plain.indexOf(":");
  return colon > 0 ? { kind: "basic", user: plain.slice(0, colon), password: plain.slice(colon + 1) } : null;
}

/**
 * Names to addresses on the host: its hosts file, else its name servers. Not through the system's resolver: that blocks one of the few threads of the process for as long as a
 * name server likes, and whose name servers are asked is partly the machine's choice (`*.example.com`).
 */
import { promises as dns } from "node:dns";
import { readFile, stat } from "node:fs/promises";
import { LIMITS } from "../../core/limits.ts";
import { Semaphore } from "../../core/semaphore.ts";

/** Addresses of a name, best first; empty when it has none. Rejects when nobody could be asked. */
export type Resolve = (name: string) => Promise<readonly string[]>;

export function hostResolver(hostsFile = "/etc/hosts"): Resolve {
  const turn = new Semaphore(LIMITS.egressLookups);
  let hosts: { readonly changed: number; readonly names: ReadonlyMap<string, readonly string[]> } | null = null;
  const fromFile = async (name: string): Promise<readonly string[]> => {
    const changed = await stat(hostsFile).then(({ mtimeMs }) => mtimeMs, () => 0);
    if (changed === 0) return [];
    if (hosts?.changed !== changed) hosts = { changed, names: parseHosts(await readFile(hostsFile, "utf8")) };
    return hosts.names.get(name) ?? [];
  };
  return async (name) => {
    const known = await fromFile(name);
    if (known.length > 0) return known;
    return turn.use(async () => {
      // One of its own for each question: servers are read from the host's configuration as it is now.
      const resolver = new dns.Resolver({ timeout: LIMITS.egressLookupMs / 4, tries: 2 });
      const [four, six] = await Promise.allSettled([resolver.resolve4(name), resolver.resolve6(name)]);
      const found = [four, six].flatMap((result) => (result.status === "fulfilled" ? result.value : []));
      const failed = [four, six].find((result) => result.status === "rejected" && !NO_SUCH.has(codeOf(result.reason)));
      if (found.length === 0 && failed?.status === "rejected") throw failed.reason;
      return found;
    });
  };
}

const NO_SUCH = new Set(["ENODATA", "ENOTFOUND", "NODATA", "NOTFOUND"]);

function codeOf(error: unknown): string {
  return error instanceof Error && "code" in error ? String(error.code) : "";
}

export function parseHosts(text: string): ReadonlyMap<string, readonly string[]> {
  const names = new Map<string, string[]>();
  for (const line of text.split("\n")) {
    const [address, ...rest] = (line.split("#")[0] ?? "").trim().split(/\s+/);
    if (address === undefined || address === "") continue;
    for (const name of rest) {
      const key = name.toLowerCase();
      names.set(key, [...(names.get(key) ?? []), address]);
    }
  }
  return names;
}

/** What `mw sandbox network` does, and how commands tell what a machine was refused. */
import { z } from "zod";
import { MwError } from "../core/errors.ts";
import type { EgressReport, NetworkMode, SandboxSpec } from "../sandbox/sandbox.ts";
import { loadConfig } from "./config.ts";
import type { AppContext } from "./context.ts";
import { askHolder } from "./held-control.ts";
import { findHeld } from "./held-machines.ts";
import { formatBytes, formatTable, note, printable, printJson, printLine } from "./output.ts";

const Told = z.object({
  network: z.string(),
  egress: z
    .object({
      allow: z.array(z.string()),
      connections: z.number(),
      sentBytes: z.number(),
      receivedBytes: z.number(),
      refused: z.number(),
      refusals: z.array(z.object({ reason: z.string(), host: z.string(), port: z.number().nullable(), message: z.string(), count: z.number(), firstAt: z.number(), lastAt: z.number() })),
    })
    .nullable(),
});

/** `mw sandbox network ID` */
export async function networkOfHeld(this: AppContext, flags: { readonly allow?: readonly string[]; readonly forget?: readonly string[]; readonly json: boolean }, id: string): Promise<void> {
  const machine = findHeld(loadConfig(this.env, this.cwd).home.value, id);
  const ask = async (allow: readonly string[] | null): Promise<z.infer<typeof Told>> => Told.parse(await askHolder(machine, { do: "network", id: machine.id, allow: allow === null ? null : [...allow] }));
  const before = await ask(null);
  const { allow: added = [], forget = [] } = flags;
  const list = [...new Set([...(before.egress?.allow ?? []), ...added])].filter((host) => !forget.includes(host));
  const { network, egress } = added.length + forget.length === 0 ? before : await ask(list);
  if (flags.json) {
    printJson(this, { sandbox: machine.id, network, egress });
    return;
  }
  printLine(this, `network ${network}`);
  if (egress === null) return;
  printLine(this, `allowed ${egress.allow.length === 0 ? "nothing" : printable(egress.allow.join(" "))}`);
  printLine(this, `${egress.connections} connections, ${formatBytes(egress.sentBytes)} sent, ${formatBytes(egress.receivedBytes)} received, ${egress.refused} refused`);
  if (egress.refusals.length === 0) return;
  const rows = egress.refusals.map(({ count, host, port, message }) => [String(count), printable(host === "" ? "-" : `${host}:${port ?? "?"}`), printable(message)]);
  printLine(this, formatTable([{ title: "REFUSED", align: "right" }, { title: "HOST" }, { title: "WHY" }], rows));
}

/** `--network` and `--allow` of a machine: the latter means a list. Throws `usage`. */
export function networkOf({ network, allow }: { readonly network?: NetworkMode; readonly allow?: readonly string[] }): Pick<SandboxSpec, "network" | "allow"> {
  if (allow === undefined) return network === undefined ? {} : { network };
  if (network !== undefined && network !== "allowlist") throw new MwError("usage", `--allow is given, but --network is ${network}`, { fix: "leave --network out, or say --network allowlist" });
  return { network: "allowlist", allow };
}

/** After a command in a machine that is gone then. */
export function noteRefusals(context: AppContext, report: EgressReport): void {
  for (const { message, count } of report.refusals) note(context, printable(`network: ${message}${count > 1 ? ` (${count} times)` : ""}`));
  const more = report.refused - report.refusals.reduce((sum, { count }) => sum + count, 0);
  if (more > 0) note(context, `network: ${more} more refusals`);
  if (report.refusals.some(({ reason }) => reason === "not_allowed")) note(context, "network: --allow HOST allows a host");
}

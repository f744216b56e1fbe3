/**
 * A trainer as a process that can be killed: trains on what it leases by writing the group's name down, and only then acknowledges. What it has written down before it acknowledges
 * only. Ends when the run is finished.
 */
import { appendFileSync, existsSync, readFileSync } from "node:fs";

const [url = "", run = "", notes = ""] = process.argv.slice(2);

async function ask(path: string, body: unknown): Promise<{ readonly lease_id: string | null; readonly run_state: string; readonly groups: { readonly group_id: string }[] }> {
  const response = await fetch(`${url}${path}`, { method: "POST", headers: { "content-type": "application/json", accept: "application/json" }, body: JSON.stringify(body) });
  if (!response.ok && response.status !== 404) throw new Error(`${path}: ${response.status} ${await response.text()}`);
  return (await response.json()) as Awaited<ReturnType<typeof ask>>;
}

for (;;) {
  const lease = await ask(`/v1/runs/${run}/lease`, { max_groups: 3, wait_ms: 500, consumer: `pid-${process.pid}` });
  if (lease.lease_id === null) {
    if (lease.run_state === "finished") break;
    continue;
  }
  const trained = new Set(existsSync(notes) ? readFileSync(notes, "utf8").split("\n") : []);
  for (const { group_id: name } of lease.groups) if (!trained.has(name)) appendFileSync(notes, `${name}\n`);
  await ask(`/v1/leases/${lease.lease_id}/ack`, { consumed: lease.groups.map(({ group_id }) => group_id) });
}

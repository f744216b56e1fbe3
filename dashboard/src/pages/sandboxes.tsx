/** The machines that live: whose, how old, what they use; a shell in each. */
import { lazy, Suspense, useState, type ReactNode } from "react";
import { Link, useLocation } from "wouter";
import { useQueryClient } from "@tanstack/react-query";
import type { z } from "zod";
import type { metricsSchema, sandboxSchema } from "../../../src/server/sandboxes/wire.ts";
import type { RunMachines as RunMachinesDocument } from "../../../src/server/runs/contract/updates.ts";
import { sendJson } from "../lib/api.ts";
import { ago, bytes, duration, moment, shortId } from "../lib/format.ts";
import { visible } from "../lib/hostile.ts";
import { useData, useNow, useTitle } from "../lib/hooks.ts";
import { Card, Crumbs, Empty, Failed, Kpi, Pill, Skeleton } from "../parts/basics.tsx";

type Sandbox = z.infer<typeof sandboxSchema>;
type Metrics = z.infer<typeof metricsSchema>;

const Shell = lazy(async () => ({ default: (await import("../parts/shell.tsx")).Shell }));

export function SandboxesPage({ sandbox }: { readonly sandbox: string | null }): ReactNode {
  useTitle("Sandboxes");
  const { data, error } = useData<{ readonly sandboxes: readonly Sandbox[]; readonly next: string | null }>("/v1/sandboxes?limit=1000", { refetchMs: 3_000 });
  const now = useNow();
  const [, navigate] = useLocation();
  if (data === undefined) return error === null ? <Skeleton lines={8} /> : <Failed error={error} />;
  const one = data.sandboxes.find(({ id }) => id === sandbox);
  if (sandbox !== null) return one === undefined ? <Empty title="That sandbox is gone"><Link className="link" href="/sandboxes">To those that live</Link></Empty> : <One key={one.id} sandbox={one} now={now} />;
  return (
    <>
      <h1>Sandboxes</h1>
      <section className="card" aria-label="Sandboxes">
        {data.sandboxes.length === 0 ? <Empty title="No sandbox lives"><p>This makes one: <code>mw sandbox create host</code>, and so does <code>POST /v1/sandboxes</code>.</p></Empty> : (
          <div className="scroll" tabIndex={0} role="group" aria-label="List of sandboxes">
            <table>
              <thead><tr><th>Sandbox</th><th>State</th><th>Image</th><th>Labels</th><th className="num">CPU</th><th className="num">Memory</th><th className="num">Processes</th><th className="num">Age</th><th className="num">Lease</th></tr></thead>
              <tbody>
                {data.sandboxes.map((row) => <Row key={row.id} sandbox={row} now={now} onOpen={() => navigate(`/sandboxes/${row.id}`)} />)}
              </tbody>
            </table>
          </div>
        )}
      </section>
      <RunMachines now={now} />
    </>
  );
}

/** Machines of rollouts: their rollouts own them, so they are only looked at. */
function RunMachines({ now }: { readonly now: number }): ReactNode {
  const { data } = useData<RunMachinesDocument>("/v1/machines?limit=200", { refetchMs: 3_000 });
  if (data === undefined) return null;
  return (
    <Card title={`At work for runs: ${data.total.toLocaleString("en")}`} flush>
      {data.machines.length === 0 ? <p className="muted" style={{ padding: 14 }}>None now. Machines of rollouts that this server runs show here.</p> : (
        <div className="scroll" style={{ marginTop: 6 }} tabIndex={0} role="group" aria-label="Machines of runs">
          <table>
            <thead><tr><th>Machine</th><th>State</th><th>Rollout</th><th>Run</th><th className="num">CPU</th><th className="num">Memory</th><th className="num">Processes</th><th className="num">Age</th></tr></thead>
            <tbody>
              {data.machines.map(({ sandbox, run, rollout, task, createdAt, state, cpuMs, memoryBytes, pids }) => (
                <tr key={sandbox}>
                  <td className="mono">{shortId(sandbox)}</td>
                  <td><Pill tone={state === "running" ? "good" : ""}>{state}</Pill></td>
                  <td className="cut">{rollout === null ? <span className="faint">none</span> : <Link className="link" href={`/rollouts/${rollout}`}>{task === null ? shortId(rollout) : visible(task).text}</Link>}</td>
                  <td className="mono"><Link className="link" href={`/runs/${run}`}>{shortId(run)}</Link></td>
                  <td className="num">{cpuMs === null ? "" : duration(cpuMs)}</td>
                  <td className="num">{memoryBytes === null ? "" : bytes(memoryBytes)}</td>
                  <td className="num">{pids ?? ""}</td>
                  <td className="num muted" title={moment(createdAt)}>{duration(now - createdAt)}</td>
                </tr>
              ))}
            </tbody>
          </table>
          {data.total > data.machines.length && <p className="faint" style={{ padding: "8px 14px" }}>The oldest {data.machines.length} of {data.total.toLocaleString("en")}.</p>}
        </div>
      )}
    </Card>
  );
}

function Row({ sandbox, now, onOpen }: { readonly sandbox: Sandbox; readonly now: number; readonly onOpen: () => void }): ReactNode {
  const { data: metrics } = useData<Metrics>(sandbox.state === "running" ? `/v1/sandboxes/${sandbox.id}/metrics` : null, { refetchMs: 5_000 });
  return (
    <tr className="open" onClick={onOpen}>
      <td className="mono"><Link className="link" href={`/sandboxes/${sandbox.id}`}>{sandbox.id}</Link></td>
      <td><Pill tone={sandbox.state === "running" ? "good" : ""}>{sandbox.state}</Pill></td>
      <td className="cut">{visible(sandbox.image).text}</td>
      <td className="cut">{Object.entries(sandbox.metadata).map(([name, value]) => <span key={name} className="chip" style={{ marginRight: 4 }}>{visible(`${name}=${value}`).text}</span>)}</td>
      <td className="num">{metrics?.cpu_ms == null ? "" : duration(metrics.cpu_ms)}</td>
      <td className="num">{metrics?.memory_bytes == null ? "" : bytes(metrics.memory_bytes)}</td>
      <td className="num">{metrics?.pids ?? ""}</td>
      <td className="num muted" title={moment(sandbox.created_at)}>{duration(now - sandbox.created_at)}</td>
      <td className="num muted">{sandbox.ends_at === null ? "" : sandbox.ends_at < now ? "over" : `${duration(sandbox.ends_at - now)} left`}</td>
    </tr>
  );
}

function One({ sandbox, now }: { readonly sandbox: Sandbox; readonly now: number }): ReactNode {
  const { data: metrics } = useData<Metrics>(sandbox.state === "running" ? `/v1/sandboxes/${sandbox.id}/metrics` : null, { refetchMs: 2_000 });
  const client = useQueryClient();
  const [, navigate] = useLocation();
  const [shell, setShell] = useState(false);
  const [busy, setBusy] = useState("");
  const [failure, setFailure] = useState<Error | null>(null);
  const path = `/v1/sandboxes/${sandbox.id}`;
  const act = (name: string, work: () => Promise<unknown>): void => {
    setBusy(name);
    setFailure(null);
    void work()
      .then(() => client.invalidateQueries({ predicate: ({ queryKey: [key] }) => typeof key === "string" && key.startsWith("/v1/sandboxes") }), setFailure)
      .finally(() => setBusy(""));
  };
  const running = sandbox.state === "running";
  return (
    <>
      <Crumbs path={[["Sandboxes", "/sandboxes"], [sandbox.id, null]]} />
      <div className="head">
        <div className="title"><h1 className="mono" style={{ fontSize: 18 }}>{sandbox.id}</h1><Pill tone={running ? "good" : ""} live={running}>{sandbox.state}</Pill></div>
        <div className="buttons">
          <button type="button" className="button primary" disabled={!running || shell} onClick={() => setShell(true)}>Open a shell</button>
          {running ? <button type="button" className="button" disabled={busy !== ""} onClick={() => act("pause", () => sendJson("POST", `${path}/pause`, {}))}>{busy === "pause" ? "Pausing …" : "Pause"}</button> : <button type="button" className="button" disabled={busy !== ""} onClick={() => act("resume", () => sendJson("POST", `${path}/resume`, {}))}>{busy === "resume" ? "Resuming …" : "Resume"}</button>}
          <button type="button" className="button" disabled={busy !== "" || !running} onClick={() => act("fork", async () => {
            const { children: [child] } = await sendJson<{ readonly children: readonly ({ readonly sandbox: Sandbox } | { readonly error: { readonly detail: string } })[] }>("POST", `${path}/fork`, { count: 1 });
            if (child !== undefined && "error" in child) throw new Error(child.error.detail);
            if (child !== undefined) navigate(`/sandboxes/${child.sandbox.id}`);
          })}>{busy === "fork" ? "Forking …" : "Fork"}</button>
          <button type="button" className="button" style={{ color: "var(--bad)" }} disabled={busy !== ""} onClick={() => {
            if (window.confirm(`End ${sandbox.id}? Nothing of it is left then.`)) act("kill", () => sendJson("DELETE", path));
          }}>{busy === "kill" ? "Ending …" : "Kill"}</button>
        </div>
      </div>
      {failure !== null && <div className="banner bad" role="alert">{visible(failure.message).text}</div>}
      <div className="kpis">
        <Kpi label="CPU time" value={metrics?.cpu_ms == null ? "–" : duration(metrics.cpu_ms)} note={sandbox.cpus === null ? "no limit" : `of ${sandbox.cpus} processors`} />
        <Kpi label="Memory" value={metrics?.memory_bytes == null ? "–" : bytes(metrics.memory_bytes)} note={sandbox.memory_bytes === null ? "no limit" : `of ${bytes(sandbox.memory_bytes)}`} />
        <Kpi label="Disk" value={metrics?.disk_bytes == null ? "–" : bytes(metrics.disk_bytes)} note={sandbox.disk_bytes === null ? "no limit" : `of ${bytes(sandbox.disk_bytes)}`} />
        <Kpi label="Processes" value={metrics?.pids ?? "–"} />
        <Kpi label="Age" value={duration(now - sandbox.created_at)} note={`since ${moment(sandbox.created_at)}`} />
        <Kpi label="Lease" value={sandbox.ends_at === null ? "none" : duration(Math.max(0, sandbox.ends_at - now))} note={sandbox.ends_at === null ? "" : `then ${sandbox.on_timeout === "pause" ? "it is paused" : "it ends"}`} />
      </div>
      {shell && running && <Suspense fallback={<Skeleton lines={6} />}><Shell sandbox={sandbox.id} onClose={() => setShell(false)} /></Suspense>}
      <Card title="Facts">
        <dl className="facts">
          <dt>Image</dt><dd>{visible(sandbox.image).text} <span className="faint mono">{sandbox.image_digest.slice(0, 19)}</span></dd>
          <dt>Network</dt><dd>{sandbox.network}</dd>
          <dt>Isolation</dt><dd>{sandbox.isolation === null ? "none while it is paused" : `${sandbox.isolation.backend}, ${sandbox.isolation.profile}`}</dd>
          <dt>Started</dt><dd>{ago(sandbox.started_at, now)}</dd>
          <dt>Labels</dt><dd>{Object.keys(sandbox.metadata).length === 0 ? "none" : Object.entries(sandbox.metadata).map(([name, value]) => <div key={name}><code>{visible(`${name}=${value}`).text}</code></div>)}</dd>
        </dl>
      </Card>
    </>
  );
}

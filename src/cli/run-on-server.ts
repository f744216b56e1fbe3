/** `mw run --server` and `mw resume --server`: the run is the server's, which goes on with it whatever becomes of us; here is what it looks like. */
import { MwError } from "../core/errors.ts";
import { isId, newId, type RunId } from "../core/ids.ts";
import type { RunEvent } from "../rollout/events.ts";
import type { Prices } from "../rollout/cost.ts";
import type { NewRun } from "../rollout/run.ts";
import { executionSchema, type ExecutionView } from "../server/plans/wire.ts";
import { runReportSchema } from "../server/runs/contract/run.ts";
import { reportEnd, type ConductOptions } from "./conduct.ts";
import type { AppContext } from "./context.ts";
import { FollowedRun } from "./followed-run.ts";
import { note } from "./output.ts";
import { startProgress, type Progress } from "./progress.ts";
import type { Interrupt } from "./run-flags.ts";
import { ConnectionLost, persistently, ServerClient } from "./server-client.ts";

export interface ServerOptions extends ConductOptions {
  readonly server: string;
  readonly interrupt?: Interrupt;
  readonly ui?: boolean;
}

/** Throws `usage` for what only a server could do. */
export function expectServer({ server, interrupt }: { readonly server?: string; readonly interrupt?: Interrupt }): void {
  if (server === undefined && interrupt !== undefined) throw new MwError("usage", "--interrupt is given, but the run is not a server's", { fix: "add --server URL, or leave it out" });
}

export async function startOnServer(context: AppContext, options: ServerOptions, { apiKeyFile, backend, takeOverSeconds: _servers, ...request }: NewRun): Promise<void> {
  if (apiKeyFile !== null) throw new MwError("usage", "with --server the model's API key is the server's", { fix: "start mw serve with MW_API_KEY_FILE, and leave --api-key-file out here" });
  if (backend !== "native") throw new MwError("usage", `with --server the machines are the server's own, and --backend is ${backend}`, { fix: "leave one of them out" });
  const run = newId("run", context.runtime);
  // The id makes it one run, however often it has to be asked for.
  await onServer(context, options, run, (ask) => ask("/v1/runs", { ...request, run }));
}

export async function resumeOnServer(context: AppContext, options: ServerOptions & { readonly errors: boolean; readonly concurrency?: number; readonly apiKeyFile?: string }, run: string): Promise<void> {
  if (options.apiKeyFile !== undefined) throw new MwError("usage", "with --server the model's API key is the server's", { fix: "leave --api-key-file out" });
  if (!isId("run", run)) throw new MwError("usage", `${JSON.stringify(run)} is no whole id of a run`, { fix: "give it as mw run has printed it" });
  const { errors, concurrency } = options;
  await onServer(context, options, run, (ask) => ask(`/v1/runs/${run}/resume`, { errors, ...(concurrency === undefined ? {} : { concurrency }) }));
}

type Ask = (path: string, body: unknown) => Promise<unknown>;

async function onServer(context: AppContext, options: ServerOptions, run: RunId, begin: (ask: Ask) => Promise<unknown>): Promise<void> {
  const client = new ServerClient(options.server, context.env);
  const progress = startProgress(context, options.quiet);
  const { runtime } = context;
  const where = ` --server ${options.server}`;
  const leave = new AbortController();
  const onLost = (): void => progress.note(`the connection to ${client.url} is lost: trying again`);
  const persist = <T>(ask: () => Promise<T>): Promise<T> => persistently(runtime, leave.signal, onLost, ask);
  const interrupts = listen(context, client, run, options.interrupt ?? "stop", progress, leave);
  try {
    await expectThere(client, leave.signal);
    await persist(() => begin((path, body) => client.ask("POST", path, body, leave.signal)));
    if (!options.quiet) progress.note(`run ${run} at ${client.url}`);
    if (options.ui === true) progress.note(`dashboard ${client.url}/ui/runs/${run}`);
    const followed = new FollowedRun(client, run, (state, event) => {
      tellRefused(progress, event);
      progress.changed(state, event);
    });
    progress.attach(followed);
    const view = await persist(() => untilOver(client, followed, run, context, leave.signal));
    const prices = await persist(() => pricesOf(client, run, leave.signal));
    progress.finish();
    if (view.state === "failed" && view.error !== null) throw new MwError("sandbox_failed", view.error.message, { fix: `${view.error.fix === null ? "" : `${view.error.fix}; `}mw resume ${run}${where} goes on` });
    reportEnd(context, options, { run, ended: view.state === "finished" ? "finished" : "interrupted", state: followed.state }, prices, where);
  } catch (error) {
    if (error !== DETACHED) throw error;
    note(context, `the run goes on at ${client.url}: mw resume ${run}${where} follows it again`);
    context.setExitCode(130);
  } finally {
    interrupts();
    progress.finish();
  }
}

const DETACHED = new Error("detached");

/** A server that is not there at all is not waited for. */
async function expectThere(client: ServerClient, signal: AbortSignal): Promise<void> {
  try {
    await client.ask("GET", "/version", undefined, signal);
  } catch (error) {
    if (!(error instanceof ConnectionLost)) throw error;
    throw new MwError("environment", `nothing answers at ${client.url}: ${error.message}`, { cause: error, fix: "start mw serve, and give --server the URL that it prints" });
  }
}

/** A server that ends breaks the stream off, and one that starts anew goes on with the run: over is what the server says is over. */
async function untilOver(client: ServerClient, followed: FollowedRun, run: RunId, { runtime }: AppContext, signal: AbortSignal): Promise<ExecutionView> {
  for (;;) {
    await followed.follow(signal);
    const view = executionSchema.parse(await client.ask("GET", `/v1/runs/${run}/execution`, undefined, signal));
    if (view.state === "failed") return view;
    if ((view.state === "finished" || view.state === "stopped") && followed.state.status !== "running") return { ...view, state: followed.state.status === "finished" ? "finished" : "stopped" };
    await runtime.sleep(FOLLOW_AGAIN_MS, signal);
  }
}

const FOLLOW_AGAIN_MS = 250;

/** Those that the run was begun with, whoever began it. */
async function pricesOf(client: ServerClient, run: RunId, signal: AbortSignal): Promise<Prices | undefined> {
  return reportSchema.parse(await client.ask("GET", `/v1/runs/${run}`, undefined, signal)).config?.prices ?? undefined;
}

const reportSchema = runReportSchema.pick({ config: true });

/** As the controller says it where it runs here. */
function tellRefused(progress: Progress, event: RunEvent): void {
  const source = event.type === "input_refused" || event.type === "group_planned" ? event.source : "";
  const error = event.type === "input_refused" || event.type === "group_planned" ? event.error : null;
  if (error !== null) progress.note(`${source}: ${error.message}${error.fix === null ? "" : ` (${error.fix})`}`);
}

/** To stop: first what runs may finish, then it ends, then we leave. To detach: we leave. */
function listen(context: AppContext, client: ServerClient, run: RunId, what: Interrupt, progress: Progress, leave: AbortController): () => void {
  let interrupts = what === "detach" ? 2 : 0;
  return context.onInterrupt(() => {
    interrupts++;
    if (interrupts > 2) {
      leave.abort(DETACHED);
      return;
    }
    progress.note(interrupts === 1 ? "stopping: nothing new starts, what runs has a while to finish; once more stops it now" : "stopping now; once more leaves the run to the server");
    client.ask("POST", `/v1/runs/${run}/stop`, { now: interrupts > 1 }, leave.signal).catch((error: unknown) => {
      if (error !== DETACHED) progress.note(`the run could not be stopped: ${error instanceof Error ? error.message : String(error)}`);
    });
  });
}

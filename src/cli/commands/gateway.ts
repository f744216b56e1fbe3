/** `mw gateway`: the model gateway alone, for agents of any kind. */
import { createHash } from "node:crypto";
import { mkdir, mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";
import { messageOf, MwError } from "../../core/errors.ts";
import { tellWhenSlow } from "../../core/tell-when-slow.ts";
import type { Call, CallSink } from "../../gateway/call.ts";
import { GatewayFailure } from "../../gateway/failure.ts";
import { expectTokens, openGateway } from "../../gateway/gateway.ts";
import { CallLog } from "../../gateway/log/call-log.ts";
import type { Gateway, GatewaySession } from "../../gateway/session.ts";
import { Renderer } from "../../gateway/render/renderer.ts";
import { ModelServer } from "../../gateway/upstreams/model-server.ts";
import { openUpstream } from "../../gateway/upstreams/open.ts";
import { parseUpstreamSpec, type UpstreamSpec } from "../../gateway/upstreams/spec.ts";
import type { Upstream } from "../../gateway/upstreams/upstream.ts";
import { writeDurably, type Durability } from "../../store/durable.ts";
import { loadConfig } from "../config.ts";
import type { AppContext } from "../context.ts";
import type { GatewayFlags } from "../gateway.ts";
import { formatDuration, note, printable, printJson, printLine } from "../output.ts";
import { expectUpstream } from "../upstream-answers.ts";
import { readApiKey, tokenizerOf } from "../upstream.ts";

export async function gateway(this: AppContext, flags: GatewayFlags): Promise<void> {
  const config = loadConfig(this.env, this.cwd, flags);
  const url = config.get("upstream");
  if (url === null) throw new MwError("usage", "no model server is named", { fix: "add --upstream vllm=http://127.0.0.1:8000, sglang=URL, or the base URL of any OpenAI-compatible server" });
  const spec = parseUpstreamSpec(url, config.origin("upstream"));
  const tokenizer = tokenizerOf(config);
  const apiKey = readApiKey(config.get("apiKeyFile"), this.env);
  await expectUpstream(spec.root, this.env);
  const model = config.get("model") ?? (await onlyModel(this, spec, apiKey));
  const upstream = openUpstream(spec, { apiKey, runtime: this.runtime, ...(tokenizer === null ? {} : { renderer: await Renderer.load(tokenizer.directory, tokenizer.family) }) });
  const logs: CallLog[] = [];
  let open: Gateway | null = null;
  try {
    const facts = await tellWhenSlow(this.runtime, () => flags.quiet || note(this, `waiting for the model ${printable(model)} at ${spec.url}: asked for one token`), upstream.probe(model, new AbortController().signal));
    if (flags.requireTokens) expectTokens(upstream, facts);
    const { capture, reason } = facts;
    const opener = new Opener(this, { upstream, model, quiet: flags.quiet, purpose: flags.requireTokens ? "train" : "evaluate", directory: flags.dir === undefined ? join(config.home.value, "gateway") : resolve(this.cwd, flags.dir), durability: config.get("durability") ?? "process", logs });
    // No machine comes through the socket: its name is taken away at once, so that a kill leaves none behind.
    const place = await mkdtemp(join(tmpdir(), "mw-gateway-"));
    try {
      open = await openGateway({ runtime: this.runtime, socketPath: join(place, "socket"), port: flags.port, ...(flags.session === undefined ? { openFor: (key) => opener.open(nameOf(key)) } : {}) });
    } finally {
      await rm(place, { recursive: true, force: true });
    }
    opener.gateway = open;
    const sessions = [];
    for (const name of flags.session ?? []) sessions.push({ name, session: await opener.open(name) });
    if (flags.json) printJson(this, { url: open.url, model, capture, sessions: sessions.map(({ name, session }) => ({ name, session: session.id, token: session.token })) });
    else printGuide(this, open.url ?? "", model, sessions);
    if (reason !== null) note(this, `no exact tokens, so the traces cannot be trained on: ${printable(reason)}`);
    await interrupted(this);
    if (!flags.quiet) note(this, "closing");
  } finally {
    await open?.close();
    await Promise.all(logs.map((log) => log.close()));
    await upstream.close();
  }
}

interface OpenerOptions {
  readonly upstream: Upstream;
  readonly model: string;
  readonly quiet: boolean;
  readonly purpose: "train" | "evaluate";
  /** Of all sessions. */
  readonly directory: string;
  readonly durability: Durability;
  /** To be closed at the end. */
  readonly logs: CallLog[];
}

class Opener {
  gateway: Gateway | null = null;
  readonly #context: AppContext;
  readonly #options: OpenerOptions;

  constructor(context: AppContext, options: OpenerOptions) {
    this.#context = context;
    this.#options = options;
  }

  /** A session with a directory of its own. */
  async open(name: string): Promise<GatewaySession> {
    if (this.gateway === null) throw new MwError("internal", "a session before its gateway");
    const { upstream, model, purpose, directory, durability, logs } = this.#options;
    // The directory is named after the session, which has no name before it is open.
    let found: (log: CallLog) => void = () => undefined;
    const log = new Promise<CallLog>((resolve) => (found = resolve));
    const sink: CallSink = {
      append: async (call, prompt) => {
        await (await log).append(call, prompt);
        this.#tell(name, call);
      },
      replayed: async (number) => (await log).replayed(number),
    };
    const session = await this.gateway.open({ label: name, sandbox: null, upstream, model, sampling: {}, budgets: { calls: null, tokens: null, timeMs: null }, purpose, log: sink });
    const own = join(directory, session.id);
    await mkdir(own, { recursive: true });
    await writeDurably(join(own, "session.json"), `${JSON.stringify({ session: session.id, name, model, upstream: upstream.name, openedAt: new Date(this.#context.runtime.now()).toISOString() }, null, 2)}\n`, durability);
    const opened = new CallLog({ path: join(own, "calls.jsonl"), durability });
    logs.push(opened);
    found(opened);
    if (!this.#options.quiet) note(this.#context, `session ${session.id} (${printable(name)}): ${printable(own)}`);
    return session;
  }

  #tell(name: string, { number, dialect, status, durationMs, answer, failure }: Call): void {
    if (this.#options.quiet) return;
    const what = failure === null ? `${answer?.usage?.completionTokens ?? "?"} tokens` : `${failure.kind}: ${failure.message}`;
    note(this.#context, printable(`${name} call ${number} (${dialect}): ${status} after ${formatDuration(durationMs)}, ${what}`));
  }
}

/** A key may be a secret of somebody's: only what is plainly a name is written down. */
function nameOf(key: string): string {
  return /^(?!sk-)[\w.-]{1,32}$/.test(key) ? key : `key-${createHash("sha256").update(key).digest("hex").slice(0, 8)}`;
}

async function onlyModel({ runtime }: AppContext, spec: UpstreamSpec, apiKey: string | null): Promise<string> {
  const models =
    (await new ModelServer({ spec, apiKey, runtime }).listModels(AbortSignal.timeout(15_000)).catch((error: unknown) => {
      const status = error instanceof GatewayFailure ? error.details.upstreamStatus : null;
      if (status !== 401 && status !== 403) return null;
      throw new MwError("upstream_failed", `${spec.url}/models: ${messageOf(error)}`, { fix: "set MW_API_KEY, or name a file that holds the key with --api-key-file", cause: error });
    })) ?? [];
  const [only, second] = models;
  if (only !== undefined && second === undefined) return only.id;
  throw new MwError("usage", models.length === 0 ? "the model server does not say which models it has" : `the model server has several models: ${models.map(({ id }) => id).slice(0, 20).join(", ")}`, { fix: "add --model NAME" });
}

function printGuide(context: AppContext, url: string, model: string, sessions: readonly { readonly name: string; readonly session: GatewaySession }[]): void {
  const print = (text = ""): void => printLine(context, text);
  const key = sessions[0]?.session.token ?? "my-first-session";
  print(`gateway ${url} to ${printable(model)}\n`);
  print(`OpenAI (chat completions, Responses)  ${url}/v1`);
  print(`Anthropic (Messages)                  ${url}`);
  print(`Gemini                                ${url}\n`);
  if (sessions.length === 0) print("Any API key opens a session of that name. To point an agent at it:\n");
  for (const { name, session } of sessions) print(`session ${printable(name)}: ${session.token}`);
  if (sessions.length > 0) print("\nTo point an agent at the first of them:\n");
  print(`export OPENAI_BASE_URL=${url}/v1 OPENAI_API_KEY=${key}`);
  print(`export ANTHROPIC_BASE_URL=${url} ANTHROPIC_API_KEY=${key}`);
  print(`export GOOGLE_GEMINI_BASE_URL=${url} GEMINI_API_KEY=${key}`);
  print(`codex -c model_provider=mw -c 'model_providers.mw={name="mw",base_url="${url}/v1",env_key="OPENAI_API_KEY",wire_api="responses"}'\n`);
}

function interrupted(context: AppContext): Promise<void> {
  return new Promise((done) => {
    const stop = context.onInterrupt(() => {
      stop();
      done();
    });
  });
}

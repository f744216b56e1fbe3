/**
 * Drives an agent CLI of others in the sandbox: its configuration into a directory of its own, the task to its input, its output and session logs to the record.
 *
 * - The CLI runs as the task's user (else the image's), in the task's directory, with the user's own home: what the agent's commands see as `~` is what the verifier
 *   sees. Its configuration lies in `/.mw/home`, which no verifier is shown.
 * - The task reaches it byte for byte, as input or as one argument, never through a shell.
 * - How it ends is put down to whose doing it was (`ending.ts`).
 */
import { createHash } from "node:crypto";
import { stringify } from "smol-toml";
import { withDeadline } from "../../core/deadline.ts";
import { MwError } from "../../core/errors.ts";
import { LIMITS } from "../../core/limits.ts";
import type { Sandbox } from "../../sandbox/sandbox.ts";
import { isRootUser } from "../../sandbox/check-spec.ts";
import { bakeHarness } from "../bake/bake.ts";
import { HEARING_MARK, LOADER_VARIABLES } from "../bake/private-libc.ts";
import { runCommand } from "../command.ts";
import type { Harness, HarnessContext, HarnessEnd } from "../harness.ts";
import { HandoverLost } from "../handover.ts";
import { stopOfSignal, type Stop } from "../stop.ts";
import type { CliDescriptor, ConfigFile } from "./descriptor.ts";
import { endOfCli } from "./ending.ts";
import type { ModelEndpoint } from "./endpoint.ts";
import { render, renderDocument, type TemplateValues } from "./template.ts";

/** The CLI's own directory in the sandbox. Everything below `/.mw` is dropped before verification. */
const HOME = "/.mw/home";
/** Of an image that says nothing. */
const DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
const DEFAULT_CONTEXT_TOKENS = 131_072;

export interface CliHarnessOptions {
  /** Runs the CLI as this user, instead of the task's. */
  readonly user?: string;
}

export function cliHarness(descriptor: CliDescriptor, options: CliHarnessOptions = {}): Harness {
  return {
    name: descriptor.name,
    version: descriptor.version,
    needsModel: true,
    callsFromMachine: true,
    handedOver: true,
    settings: { descriptor, user: options.user ?? null },
    layers: async (images, bake) => (descriptor.install.kind === "none" ? [] : (await images.rootFilesystem(await bakeHarness(images, descriptor, bake))).layers.map((path) => ({ path }))),
    run: (context) => drive(descriptor, options, context),
  };
}

async function drive(descriptor: CliDescriptor, options: CliHarnessOptions, context: HarnessContext): Promise<HarnessEnd> {
  const { endpoint, sandbox, signal, budgets, instruction, handover } = context;
  const begun = handover?.begun ?? null;
  if (endpoint === null) throw new MwError("usage", `${descriptor.title} needs a model.`, { fix: "Add --upstream URL and --model NAME." });
  const input = instructionInput(descriptor, instruction);
  const user = options.user ?? context.user;
  const owner = user ?? sandbox.spec.user ?? sandbox.spec.root.user;
  const root = isRootUser(owner);
  const values = valuesOf(descriptor, context, endpoint);
  const now = context.runtime.now();
  const startedAt = context.runtime.monotonic() - (begun === null ? 0 : now - begun.at);
  const counts = (): Omit<HarnessEnd, "stopReason" | "detail"> => {
    const totals = endpoint.totals();
    const modelMs = totals?.modelMs ?? 0;
    return { turns: totals?.complete ?? 0, promptTokens: totals?.promptTokens ?? 0, completionTokens: totals?.completionTokens ?? 0, modelMs, toolMs: Math.max(0, Math.round(context.runtime.monotonic() - startedAt - modelMs)) };
  };
  if (signal.aborted) return { ...stopOfSignal(signal), ...counts() };
  try {
    // One that runs has its own.
    const env = begun === null ? await prepare(descriptor, context, values, { user, owner, root }) : {};
    const command = commandOf(descriptor, root, values);
    const { exit, stdout, stderr } = await runCommand(
      { ...context, user, budgets: { ...budgets, outputBytes: LIMITS.cliOutputBytes } },
      {
        command: [...command, ...input.words],
        shown: command,
        agentWasHere: false,
        env,
        stdin: input.stdin,
        handover,
        ...(budgets.timeMs === null ? {} : { timeoutMs: Math.max(1, Math.ceil(budgets.timeMs)) }),
      },
    );
    await keepLogs(descriptor, context);
    if (signal.aborted) return { ...stopOfSignal(signal), ...counts() };
    const end = (): Stop => endOfCli(descriptor, exit, { stdout, stderr }, endpoint.totals());
    return { ...(begun !== null && begun.at + exit.durationMs < now ? endOfUnanswered(end) : end()), ...counts() };
  } catch (error) {
    if (signal.aborted) return { ...stopOfSignal(signal), ...counts() };
    throw error;
  } finally {
    // Fails when the machine is gone, or holds more than can be cleared away in a while. A later step of the task starts afresh.
    await withDeadline(context.runtime, LIMITS.cliClearMs, "clearing the CLI's directory away", undefined, () => sandbox.files.remove(HOME)).catch(() => undefined);
  }
}

/** It ended while nobody answered its calls: then a failure is put down to that. */
function endOfUnanswered(end: () => Stop): Stop {
  let stop: Stop;
  try {
    stop = end();
  } catch (error) {
    throw new HandoverLost("its agent gave up while no controller answered it", error);
  }
  if (stop.stopReason === "crashed") throw new HandoverLost(`its agent gave up while no controller answered it: ${stop.detail}`);
  return stop;
}

/** The CLI's directory, and its environment. */
async function prepare(descriptor: CliDescriptor, context: HarnessContext, values: TemplateValues, { user, owner, root }: { readonly user: string | null; readonly owner: string; readonly root: boolean }): Promise<Readonly<Record<string, string>>> {
  const { sandbox } = context;
  await prepareHome(sandbox, descriptor, values, owner === "" ? "0:0" : owner);
  return { ...(await keptFromCli(context, descriptor)), ...(await ownHome(sandbox, user)), ...(await companionOf(sandbox, descriptor, values)), ...renderAll({ ...descriptor.env, ...(root ? descriptor.rootEnv : {}) }, values) };
}

function commandOf({ command, rootArgs = [], literalCommand }: CliDescriptor, root: boolean, values: TemplateValues): readonly string[] {
  const words = root ? [...command, ...rootArgs] : command;
  return literalCommand === true ? words : words.map((word) => render(word, values));
}

interface InstructionInput {
  readonly stdin: string;
  /** Last words of the command. */
  readonly words: readonly string[];
}

/** Exported for tests. */
export function instructionInput({ instruction: way, title }: CliDescriptor, instruction: string): InstructionInput {
  if (way === "file") return { stdin: "", words: [] };
  if (way === "stdin") return { stdin: instruction, words: [] };
  const head = way === "split" ? (/^[-@]*/.exec(instruction)?.[0] ?? "") : "";
  const rest = instruction.slice(head.length);
  if (rest.includes("\0")) throw new MwError("invalid_task", `The instruction holds a NUL character, which ${title} cannot be given.`);
  if (Buffer.byteLength(rest) > LIMITS.argumentBytes) throw new MwError("invalid_task", `The instruction has ${Buffer.byteLength(instruction)} bytes; ${title} takes it as an argument, which has at most ${LIMITS.argumentBytes}.`, { fix: "Shorten it, or use another harness." });
  return { stdin: head, words: rest === "" ? [] : [rest] };
}

function valuesOf(descriptor: CliDescriptor, context: HarnessContext, endpoint: ModelEndpoint): TemplateValues {
  const contextTokens = endpoint.contextTokens ?? DEFAULT_CONTEXT_TOKENS;
  const hash = createHash("sha256").update(`cli:${context.seed}`).digest("hex");
  return {
    root: `/.mw/harness/${descriptor.name}`,
    node: "/.mw/node/bin/node",
    python: `/.mw/harness/${descriptor.name}/python/bin/python3`,
    platform: `${process.platform}-${process.arch}`,
    triple: `${process.arch === "arm64" ? "aarch64" : "x86_64"}-unknown-linux-musl`,
    home: HOME,
    baseUrl: endpoint.baseUrl,
    token: endpoint.token,
    model: endpoint.model,
    contextTokens,
    outputTokens: Math.min(32_000, Math.floor(contextTokens / 4)),
    uuid: `${hash.slice(0, 8)}-${hash.slice(8, 12)}-4${hash.slice(13, 16)}-8${hash.slice(17, 20)}-${hash.slice(20, 32)}`,
    instruction: context.instruction,
  };
}

async function prepareHome(sandbox: Sandbox, descriptor: CliDescriptor, values: TemplateValues, owner: string): Promise<void> {
  await sandbox.files.remove(HOME);
  await sandbox.files.mkdir(HOME, { mode: 0o700, owner });
  await sandbox.files.mkdir(`${HOME}/tmp`, { mode: 0o700, owner });
  for (const file of descriptor.files) {
    const parts = file.path.split("/").slice(0, -1);
    for (let depth = 1; depth <= parts.length; depth++) await sandbox.files.mkdir(`${HOME}/${parts.slice(0, depth).join("/")}`, { mode: 0o700, owner });
    await sandbox.files.write(`${HOME}/${file.path}`, contentOf(file, values), { mode: 0o600, owner });
  }
}

function contentOf({ format, content }: ConfigFile, values: TemplateValues): string {
  const rendered = renderDocument(content, values);
  if (format === "text") return String(rendered);
  if (format === "toml") return `${stringify(rendered)}\n`;
  // Characters that YAML, which is what some CLIs read it as, takes for line ends or refuses.
  const escaped = (text: string): string => text.replaceAll(/[\u007f-\u009f\u2028\u2029\ufeff\ufffe\uffff]/g, (char) => `\\u${char.charCodeAt(0).toString(16).padStart(4, "0")}`);
  return `${escaped(JSON.stringify(rendered, null, 2))}\n`;
}

function renderAll(texts: Readonly<Record<string, string>>, values: TemplateValues): Readonly<Record<string, string>> {
  return Object.fromEntries(Object.entries(texts).map(([name, text]) => [name, render(text, values)]));
}

/**
 * Of the image's environment, what would reach the CLI itself instead of the agent's commands. Nothing else is taken away: those commands are to run as the task's author
 * meant them to.
 */
async function keptFromCli({ sandbox, recorder }: HarnessContext, { install }: CliDescriptor): Promise<Readonly<Record<string, string>>> {
  const { spec } = sandbox;
  const image = { ...spec.root.env, ...spec.env };
  const present = (names: readonly string[]): readonly string[] => names.filter((name) => (image[name] ?? "") !== "");
  const cleared = install.kind === "npm" && install.node !== null ? [...present(["NODE_OPTIONS"])] : [];
  const loader = present(LOADER_VARIABLES);
  if (install.kind !== "none" && loader.length > 0 && (await sandbox.files.stat(HEARING_MARK)) !== null) cleared.push(...loader);
  if (cleared.length > 0) await recorder.note(`The agent's commands do not see ${cleared.join(", ")} of the image: the agent CLI itself would obey it.`);
  const proxies = present(["http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"]).length > 0;
  const direct = (name: string): string => [image[name] ?? "", "127.0.0.1", "localhost"].filter((part) => part !== "").join(",");
  return { ...Object.fromEntries(cleared.map((name) => [name, ""])), ...(proxies ? { no_proxy: direct("no_proxy"), NO_PROXY: direct("NO_PROXY") } : {}) };
}

/** The user's home is the image's. A user who has none there that can be written gets the CLI's directory: programs fail without one. */
async function ownHome(sandbox: Sandbox, user: string | null): Promise<Readonly<Record<string, string>>> {
  const { code } = await sandbox.run({ command: ["/bin/sh", "-c", 'test -d "$HOME" && test -w "$HOME"'], ...(user === null ? {} : { user }), timeoutMs: 60_000 });
  return code === 0 ? {} : { HOME };
}

async function companionOf(sandbox: Sandbox, { companion }: CliDescriptor, values: TemplateValues): Promise<Readonly<Record<string, string>>> {
  if (companion === undefined) return {};
  const { code } = await sandbox.run({ command: ["/bin/sh", "-c", 'command -v "$0" >/dev/null', companion.program], timeoutMs: 60_000 });
  if (code === 0) return {};
  if (companion.variable !== null) return { [companion.variable]: `${values.root}/bin/${companion.program}` };
  const { spec } = sandbox;
  return { PATH: `${spec.env?.["PATH"] ?? spec.root.env["PATH"] ?? DEFAULT_PATH}:${values.root}/bin` };
}

/** Session logs are worth having and nobody's failure. */
async function keepLogs(descriptor: CliDescriptor, { sandbox, recorder, signal }: HarnessContext): Promise<void> {
  for (const log of descriptor.logs) {
    const path = `${HOME}/${log}`;
    if ((await sandbox.files.stat(path).catch(() => null)) === null) continue;
    await recorder.keep(log, (target) => sandbox.files.download(path, target, { maxBytes: LIMITS.cliLogBytes, maxEntries: LIMITS.cliLogEntries, signal }).then(() => undefined)).catch((error: unknown) => recorder.note(`the session log ${log} could not be kept: ${String(error)}`));
  }
}

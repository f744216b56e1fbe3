/**
 * Runs one stage: every step that writes files runs in a machine of its own, started from the image so far; the machine is then sealed and its workspace becomes
 * the next layer. Steps that only describe the image change its configuration. A chain of keys (parent, instruction, what it copies) finds finished steps again.
 */
import { createHash } from "node:crypto";
import { chmod, mkdtemp } from "node:fs/promises";
import { join, posix } from "node:path";
import { MwError } from "../core/errors.ts";
import { isArchive } from "../image/archive.ts";
import type { Image, ImageConfig, ImageProgress, ImageStore } from "../image/image.ts";
import type { NetworkMode, Sandbox, SandboxBackend } from "../sandbox/sandbox.ts";
import type { StepCache } from "./builder.ts";
import { hashTree, stageHeredoc, stageSources, type BuildContext, type StagedSource } from "./context.ts";
import { addArchive, copied, expandInside, inMachine } from "./copy.ts";
import type { CommandLine, CopyInstruction, Instruction, Stage } from "./dockerfile.ts";
import { expandVariables } from "./words.ts";

export interface BuildEnvironment {
  readonly backend: SandboxBackend;
  readonly images: ImageStore;
  readonly dockerfileName: string;
  readonly temporary: string;
  readonly context: BuildContext;
  readonly network: NetworkMode;
  /** Of the network `allowlist`. */
  readonly allow: readonly string[];
  readonly progress: ImageProgress;
  readonly signal: AbortSignal;
  readonly escape: string;
  readonly buildArgs: Readonly<Record<string, string>>;
  readonly cache: StepCache;
}

/** Arguments that need no ARG instruction, as in Docker. */
const PREDEFINED_ARGS = ["HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy", "FTP_PROXY", "ftp_proxy", "NO_PROXY", "no_proxy", "ALL_PROXY", "all_proxy"];
const OUTPUT_TAIL_LINES = 40;

interface Config {
  env: Record<string, string>;
  workdir: string;
  user: string;
  entrypoint: readonly string[];
  cmd: readonly string[];
  labels: Record<string, string>;
}

export class StageExecutor {
  readonly #build: BuildEnvironment;
  readonly #stage: Stage;
  readonly #globals: ReadonlyMap<string, string>;
  readonly #finished: ReadonlyMap<string, Image>;
  readonly #args = new Map<string, string>();
  #shell: readonly string[] = ["/bin/sh", "-c"];
  #config: Config = { env: {}, workdir: "/", user: "", entrypoint: [], cmd: [], labels: {} };
  /** The instruction under way, as people read it. */
  #title = "";
  #image: Image | null = null;
  #key = "";

  constructor(build: BuildEnvironment, stage: Stage, globals: ReadonlyMap<string, string>, finished: ReadonlyMap<string, Image>) {
    this.#build = build;
    this.#stage = stage;
    this.#globals = globals;
    this.#finished = finished;
    for (const name of PREDEFINED_ARGS) {
      const value = build.buildArgs[name];
      if (value !== undefined) this.#args.set(name, value);
    }
  }

  async run(): Promise<Image> {
    const base = this.#expandWith(this.#stage.base, (name) => this.#globals.get(name), this.#stage.line);
    this.#image = await this.#baseImage(base);
    this.#key = this.#image.digest;
    const { config } = this.#image;
    this.#config = { ...config, env: { ...config.env }, labels: { ...config.labels } };
    for (const [index, step] of this.#stage.instructions.entries()) {
      this.#build.signal.throwIfAborted();
      this.#title = `${this.#build.dockerfileName} [${this.#stage.name ?? base} ${index + 1}/${this.#stage.instructions.length}] ${step.text.split("\n")[0]}`;
      await this.#step(step);
    }
    return this.#build.images.commit(this.#image, null, this.#configuration(), `${this.#build.dockerfileName} (from ${base})`);
  }

  async #baseImage(base: string): Promise<Image> {
    const stage = this.#finished.get(base.toLowerCase());
    if (stage !== undefined) return stage;
    if (base === "scratch") {
      const empty = await mkdtemp(join(this.#build.temporary, "scratch-"));
      // Its mode is that of the root, which users besides root have to get through.
      await chmod(empty, 0o755);
      return this.#build.images.commit(null, empty, { env: {}, workdir: "/", user: "", entrypoint: [], cmd: [], labels: {} }, "scratch");
    }
    return this.#build.images.resolve(base, { progress: this.#build.progress, signal: this.#build.signal });
  }

  async #step(step: Instruction): Promise<void> {
    switch (step.kind) {
      case "run":
        return this.#runCommand(step);
      case "copy":
        return this.#copy(step);
      case "workdir":
        return this.#workdir(step.line, step.value);
      case "env":
        // All values see the variables as they were before this instruction.
        Object.assign(this.#config.env, Object.fromEntries(step.pairs.map(({ name, value }) => [name, this.#expand(value ?? "", step.line)])));
        return undefined;
      case "label":
        for (const { name, value } of step.pairs) this.#config.labels[name] = this.#expand(value ?? "", step.line);
        return undefined;
      case "arg":
        for (const { name, value } of step.pairs) this.#declareArg(name, value, step.line);
        return undefined;
      case "user":
        this.#config.user = this.#expand(step.value, step.line);
        return undefined;
      case "shell":
        this.#shell = step.argv;
        return undefined;
      case "cmd":
        this.#config.cmd = this.#argv(step.command);
        return undefined;
      case "entrypoint":
        this.#config.entrypoint = this.#argv(step.command);
        // As in Docker: a new entry point has no arguments of the old one.
        this.#config.cmd = [];
        return undefined;
    }
  }

  #declareArg(name: string, fallback: string | null, line: number): void {
    const given = this.#build.buildArgs[name];
    const value = given ?? (fallback === null ? this.#globals.get(name) : this.#expand(fallback, line));
    if (value !== undefined) this.#args.set(name, value);
  }

  #argv(command: CommandLine): readonly string[] {
    if (command.form === "exec") return command.argv;
    return command.line === "" ? [] : [...this.#shell, command.line];
  }

  async #runCommand(step: Extract<Instruction, { kind: "run" }>): Promise<void> {
    const network = step.network === "none" ? "none" : this.#build.network;
    const { argv, stdin } = this.#runArgv(step);
    const key = ["run", argv, stdin ?? "", network === "allowlist" ? [network, ...this.#build.allow] : network, this.#config.user, this.#config.workdir, this.#config.env, [...this.#args]];
    await this.#layer(key, network, async (sandbox) => {
      const tail: string[] = [];
      const user = this.#config.user === "" ? "root" : this.#config.user;
      const env = { ...Object.fromEntries(this.#args), ...this.#config.env };
      const request = { command: argv, cwd: this.#config.workdir, user, env, ...(stdin === null ? {} : { stdin }), signal: this.#build.signal };
      const exec = await sandbox.exec(request).catch((error: unknown) => {
        if (!(error instanceof MwError) || error.code !== "invalid_input") throw error;
        throw new MwError("invalid_image", `${this.#where(step.line)}: the step cannot start as ${user} in ${this.#config.workdir}: ${error.message}`, { fix: "Make the user or directory in an earlier step.", cause: error });
      });
      const decoder = new TextDecoder();
      let partial = "";
      for await (const { data } of exec.output) {
        const lines = (partial + decoder.decode(data, { stream: true })).split("\n");
        partial = lines.pop() ?? "";
        for (const line of lines) {
          this.#build.progress(`  ${line}`);
          tail.push(line);
        }
        tail.splice(0, Math.max(0, tail.length - OUTPUT_TAIL_LINES));
      }
      const exit = await exec.exit;
      this.#build.signal.throwIfAborted();
      if (exit.ended === "lost") throw new MwError("sandbox_failed", `${this.#where(step.line)}: the machine of the step ended under it`, { fix: "Build again; `mw doctor` says whether the host is short of memory or disk." });
      await exec.acknowledge();
      if (exit.code === 0) return;
      const why = exit.cause === null ? `exit code ${exit.code}` : `${exit.cause} (exit code ${exit.code})`;
      const refused = sandbox.egress?.report().refusals[0]?.message;
      const output = [...tail, partial].filter((line) => line !== "").join("\n");
      throw new MwError("image_failed", `${this.#where(step.line)}: \`${step.text.split("\n")[0]}\` failed with ${why}${output === "" ? "" : `\n${output}`}`, {
        fix: refused !== undefined ? `${refused}; allow it (--allow HOST) if the step needs it.` : network === "none" ? "The step ran without network; give the build one if it needs it." : output === "" ? "It printed nothing; run it by hand: mw sandbox shell IMAGE." : "Its last lines of output are above.",
        facts: { file: this.#build.dockerfileName, line: step.line, exitCode: exit.code },
      });
    });
  }

  /** A RUN whose line is just a heredoc marker is a script: run by its `#!` line or the shell. Other heredocs belong to the shell line. */
  #runArgv(step: Extract<Instruction, { kind: "run" }>): { argv: readonly string[]; stdin: string | null } {
    if (step.command.form === "exec") return { argv: step.command.argv, stdin: null };
    const [script] = step.heredocs;
    if (script === undefined) return { argv: [...this.#shell, step.command.line], stdin: null };
    if (/^<<-?["']?\w+["']?$/.test(step.command.line)) {
      const interpreter = /^#!\s*(\S+)(?:\s+(.+))?\n/.exec(script.content);
      if (interpreter !== null) return { argv: [interpreter[1] ?? "", ...(interpreter[2] === undefined ? [] : [interpreter[2]]), "/dev/stdin"], stdin: script.content };
      return { argv: [...this.#shell, script.content], stdin: null };
    }
    const bodies = step.heredocs.map(({ content, name }) => `${content}${name}\n`).join("");
    return { argv: [...this.#shell, `${step.command.line}\n${bodies}`], stdin: null };
  }

  async #copy(step: CopyInstruction): Promise<void> {
    const expand = (text: string): string => this.#expand(text, step.line);
    const destination = this.#absolute(expand(step.destination), step.line);
    const owner = step.chown === null ? "0:0" : expand(step.chown);
    const sources = step.sources.map(expand);
    if (step.from !== null) return this.#copyFrom(step, expand(step.from), sources, destination, owner);
    const target = await mkdtemp(join(this.#build.temporary, "copy-"));
    const mode = this.#mode(step);
    const where = this.#where(step.line);
    const staged: StagedSource[] = [
      ...(await stageSources(this.#build.context, sources, { target, exclude: step.exclude, mode, where })),
      ...(await Promise.all(step.heredocs.map(({ name, content, expand: variables }) => stageHeredoc(target, name, variables ? this.#expandBody(content, step.line) : content, mode)))),
    ];
    const key = ["copy", step.add, destination, owner, await Promise.all(staged.map(async ({ path, name }) => [name, await hashTree(path)]))];
    await this.#layer(key, "none", async (sandbox) => {
      const intoDirectory = await this.#isDirectory(sandbox, destination, step, staged.length);
      for (const { path, name, isDirectory } of staged) {
        if (step.add && !isDirectory && (await isArchive(path))) await addArchive(this.#build, sandbox, { path, name, destination, owner: step.chown === null ? null : owner, where });
        else copied(this.#build, where, await sandbox.files.upload(path, isDirectory || !intoDirectory ? destination : posix.join(destination, name), { owner, signal: this.#build.signal }));
      }
    });
  }

  async #copyFrom(step: CopyInstruction, from: string, sources: readonly string[], destination: string, owner: string): Promise<void> {
    const image = this.#finished.get(from.toLowerCase()) ?? (await this.#build.images.resolve(from, { progress: this.#build.progress, signal: this.#build.signal }));
    const mode = this.#mode(step);
    const where = this.#where(step.line);
    await this.#layer(["copy-from", image.digest, sources, destination, owner, mode, step.exclude], "none", (sandbox) =>
      inMachine(this.#build, image, async (origin) => {
        const found = (await Promise.all(sources.map((source) => expandInside(origin, source)))).flat();
        const missing = sources.find((source) => !/[*?[]/.test(source) && !found.includes(posix.join("/", source)));
        if (missing !== undefined || found.length === 0) {
          throw new MwError("invalid_image", `${where}: ${missing ?? sources.join(" ")} does not exist in ${from}`, { fix: "Check the path; it is absolute in that image." });
        }
        const intoDirectory = await this.#isDirectory(sandbox, destination, step, found.length);
        for (const source of found) {
          const isDirectory = (await origin.files.stat(source))?.type === "directory";
          const to = isDirectory || !intoDirectory ? destination : posix.join(destination, posix.basename(source));
          copied(this.#build, where, await origin.files.copyTo(sandbox.files, source, to, { owner, exclude: step.exclude, signal: this.#build.signal, ...(mode === null ? {} : { mode }) }));
        }
      }),
    );
  }

  async #isDirectory(sandbox: Sandbox, destination: string, step: CopyInstruction, count: number): Promise<boolean> {
    if (count > 1 || /(^|\/)\.?$/.test(step.destination)) return true;
    const stat = await sandbox.files.stat(destination);
    if (stat?.type !== "symlink") return stat?.type === "directory";
    return (await sandbox.files.stat(`${destination}/.`)) !== null;
  }

  #mode(step: CopyInstruction): number | null {
    if (step.chmod === null) return null;
    const text = this.#expand(step.chmod, step.line);
    if (/^[0-7]{3,4}$/.test(text)) return Number.parseInt(text, 8);
    throw new MwError("invalid_image", `${this.#where(step.line)}: --chmod=${text} is not an octal mode`, { fix: "Write it as digits, e.g. --chmod=755." });
  }

  async #workdir(line: number, value: string): Promise<void> {
    const workdir = this.#absolute(this.#expand(value, line), line);
    this.#config.workdir = workdir;
    await this.#layer(["workdir", workdir], "none", async (sandbox) => {
      if ((await sandbox.files.stat(workdir)) === null) await sandbox.files.mkdir(workdir);
    });
  }

  #absolute(path: string, line: number): string {
    if (path.includes("\0")) throw new MwError("invalid_image", `${this.#where(line)}: a path holds a NUL byte`);
    return posix.resolve(this.#config.workdir, path);
  }

  /** Runs `work` in a machine on the image so far and makes what it wrote the next layer, unless an equal step was done before. */
  async #layer(step: unknown, network: NetworkMode, work: (sandbox: Sandbox) => Promise<void>): Promise<void> {
    // Set by `run` before the first step.
    const base = this.#image;
    if (base === null) throw new MwError("internal", "a build step without an image");
    this.#key = createHash("sha256").update(this.#key).update(JSON.stringify(step)).digest("hex");
    const cached = await this.#build.cache.find(this.#key);
    if (cached !== null) {
      this.#image = cached;
      return;
    }
    // What was done before is no news.
    this.#build.progress(this.#title);
    const root = await this.#build.images.rootFilesystem(base);
    const sandbox = await this.#build.backend.create({ root: { ...root, workdir: "/", user: "" }, network, ...(network === "allowlist" ? { allow: this.#build.allow } : {}), labels: { purpose: "build" } });
    try {
      await work(sandbox);
      const workspace = await sandbox.seal();
      try {
        const layer = await this.#exportLayer(workspace);
        this.#image = await this.#build.images.commit(base, layer, this.#configuration(), this.#build.dockerfileName);
      } finally {
        await workspace.release();
      }
    } finally {
      await sandbox.kill();
    }
    await this.#build.cache.add(this.#key, this.#image);
  }

  async #exportLayer(workspace: { changes(): Promise<readonly unknown[]>; export(directory: string): Promise<void> }): Promise<string | null> {
    if ((await workspace.changes()).length === 0) return null;
    const parent = await mkdtemp(join(this.#build.temporary, "layer-"));
    await workspace.export(join(parent, "upper"));
    return join(parent, "upper");
  }

  #configuration(): ImageConfig {
    return { ...this.#config, env: { ...this.#config.env }, labels: { ...this.#config.labels } };
  }

  #expand(text: string, line: number): string {
    return this.#expandWith(text, (name) => this.#config.env[name] ?? this.#args.get(name), line);
  }

  /** Heredoc bodies are expanded without quote removal. */
  #expandBody(content: string, line: number): string {
    return content.replaceAll(/\$\{[^}]*\}|\$[A-Za-z_]\w*/g, (reference) => this.#expand(reference, line));
  }

  #expandWith(text: string, lookup: (name: string) => string | undefined, line: number): string {
    try {
      return expandVariables(text, this.#build.escape, lookup);
    } catch (error) {
      throw new MwError("invalid_image", `${this.#where(line)}: ${error instanceof Error ? error.message : String(error)}`, {
        fix: "Use $NAME, ${NAME}, ${NAME:-default} or ${NAME:+alternative}.",
      });
    }
  }

  #where(line: number): string {
    return `${this.#build.dockerfileName}:${line}`;
  }
}

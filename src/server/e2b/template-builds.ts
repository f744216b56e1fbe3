/** Builds of templates: files are uploaded first, then the steps are built into an image by our builder, some at once, each with a log that its client polls. */
import { createReadStream, createWriteStream, existsSync } from "node:fs";
import { mkdir, mkdtemp, rename, rm, writeFile } from "node:fs/promises";
import { join, relative } from "node:path";
import { pipeline } from "node:stream/promises";
import type { Readable } from "node:stream";
import { messageOf, MwError } from "../../core/errors.ts";
import { LIMITS } from "../../core/limits.ts";
import { decompressed } from "../../image/decompress.ts";
import { readTar } from "../../image/tar-read.ts";
import { TreeWriter } from "../../image/unpacker.ts";
import type { Image } from "../../image/image.ts";
import { closed } from "../../store/durable.ts";
import type { Sandbox, SandboxSpec } from "../../sandbox/sandbox.ts";
import { ProblemError } from "../problem.ts";
import { Admission } from "../sandboxes/admission.ts";
import type { Services } from "../services.ts";
import type { Facade } from "./facade.ts";
import type { BuildBody } from "./schemas.ts";
import { templateDockerfile } from "./template-dockerfile.ts";
import { Accounts } from "./envd/accounts.ts";
import { userOf } from "./envd/guest.ts";
import { ProcessHub } from "./envd/process-hub.ts";
import type { ProcessRecords } from "./envd/process-records.ts";
import { startIn, type TemplateCommands } from "./template-start.ts";
import { templateImage, type TemplateRecord } from "./template-store.ts";
import type { Templates } from "./templates.ts";

export interface BuildLogEntry {
  readonly timestamp: string;
  readonly message: string;
  readonly level: "info" | "error";
}

export interface Build {
  readonly buildID: string;
  readonly templateID: string;
  readonly owner: string;
  readonly tags: readonly string[];
  readonly cpuCount: number | null;
  readonly memoryMB: number | null;
  readonly createdAt: number;
  endedAt: number | null;
  status: "waiting" | "building" | "ready" | "error";
  readonly logs: BuildLogEntry[];
  reason: { readonly message: string; readonly step?: string } | null;
}

const HASH = /^[0-9a-f]{64}$/;
/** Of each owner: what one does costs no other anything. */
const BUILDS_KEPT = 200;
const UPLOADS_KEPT = 1000;

export class TemplateBuilds {
  readonly #services: Services;
  readonly #templates: Templates;
  readonly #processRecords: ProcessRecords;
  readonly #network: Facade["network"];
  readonly #directory: string;
  readonly #builds = new Map<string, Build>();
  /** What an upload's address stands for. */
  readonly #uploads = new Map<string, { readonly owner: string; readonly templateID: string; readonly hash: string }>();
  readonly #turns: Admission;

  constructor(services: Services, templates: Templates, processRecords: ProcessRecords, network: Facade["network"]) {
    this.#network = network;
    this.#services = services;
    this.#templates = templates;
    this.#processRecords = processRecords;
    this.#directory = join(services.home, "e2b", "builds");
    const most = Number.MAX_SAFE_INTEGER;
    // One place is one build: only how many are under way at once is bounded here, and whose turn it is.
    this.#turns = new Admission({ atOnce: LIMITS.templateBuildsAtOnce, places: most, placesOfOwner: most, waiting: most, waitingOfOwner: most, waitMs: LIMITS.templateBuildMs * LIMITS.templateBuildsOfOwner }, services.runtime, () => 1);
  }

  /** What a killed server left of builds. */
  async sweep(): Promise<void> {
    await this.#templates.sweep();
    await rm(this.#directory, { recursive: true, force: true });
  }

  begin(owner: string, template: TemplateRecord, tags: readonly string[]): Build {
    const build: Build = { buildID: uuidOf(this.#services.runtime.randomBytes(16)), templateID: template.templateID, owner, tags, cpuCount: template.cpuCount, memoryMB: template.memoryMB, createdAt: this.#services.runtime.now(), endedAt: null, status: "waiting", logs: [], reason: null };
    this.#builds.set(build.buildID, build);
    const own = [...this.#builds.values()].filter((other) => other.owner === owner && other.status !== "building");
    if (own.length > BUILDS_KEPT) this.#builds.delete(own[0]?.buildID ?? "");
    return build;
  }

  /** Newest first; those of before the server's start are not known. */
  list(owner: string, templateID: string): readonly Build[] {
    return [...this.#builds.values()].filter((build) => build.owner === owner && build.templateID === templateID).toReversed();
  }

  get(owner: string, templateID: string, buildID: string): Build {
    const build = this.#builds.get(buildID);
    if (build === undefined || build.owner !== owner || build.templateID !== templateID) throw new MwError("not_found", `there is no build ${JSON.stringify(buildID.slice(0, 100))} of that template`);
    return build;
  }

  /** Where the client puts the archive with this hash, or that it is here. */
  async upload(owner: string, templateID: string, hash: string): Promise<{ readonly present: boolean; readonly token: string }> {
    if (!HASH.test(hash)) throw new MwError("invalid_input", "the hash of the files is no SHA-256");
    await mkdir(join(this.#directory, templateID), { recursive: true, mode: 0o700 });
    const token = Buffer.from(this.#services.runtime.randomBytes(20)).toString("hex");
    this.#uploads.set(token, { owner, templateID, hash });
    const own = [...this.#uploads].filter(([, upload]) => upload.owner === owner);
    if (own.length > UPLOADS_KEPT) this.#uploads.delete(own[0]?.[0] ?? "");
    return { present: existsSync(this.#archive(templateID, hash)), token };
  }

  /** The address is the right to write once. */
  async receive(token: string, body: Readable): Promise<void> {
    const upload = this.#uploads.get(token);
    if (upload === undefined) throw new MwError("not_found", "there is no upload with this address");
    this.#uploads.delete(token);
    await this.#services.sandboxes.expectRoom();
    const path = this.#archive(upload.templateID, upload.hash);
    const part = `${path}.${token}`;
    const file = createWriteStream(part, { mode: 0o600 });
    try {
      await pipeline(body, limited(LIMITS.templateUploadBytes), file);
      await rename(part, path);
    } finally {
      await closed(file);
      await rm(part, { force: true });
    }
  }

  /** Answers at once; the build goes on. */
  start(build: Build, body: BuildBody): void {
    if (build.status !== "waiting") throw new MwError("conflict", `the build ${build.buildID} was started already`);
    const building = [...this.#builds.values()].filter((other) => other.owner === build.owner && other.status === "building").length;
    if (building >= LIMITS.templateBuildsOfOwner) throw new ProblemError("overloaded", `${building} builds of yours are under way already`, { fix: "ask again later", headers: { "retry-after": "10" } });
    build.status = "building";
    void this.#turns.run(build.owner, this.#services.draining, 1, ([place]) => this.#run(build, body).finally(() => place?.release())).catch((error: unknown) => this.#services.log(`build ${build.buildID}: ${messageOf(error)}`));
  }

  async #run(build: Build, body: BuildBody): Promise<void> {
    const place = join(this.#directory, build.templateID);
    let steps: readonly number[] = [];
    /** Of no template yet. */
    let memory: string | null = null;
    await mkdir(place, { recursive: true, mode: 0o700 });
    const work = await mkdtemp(join(place, "work-"));
    // Where the build lies on this host is nothing to its client.
    const told = (text: string): string => text.replaceAll(`${relative(process.cwd(), work)}/`, "").replaceAll(`${work}/`, "");
    try {
      const { image: base, commands: inherited } = await this.#base(build.owner, body);
      const commands = commandsNow(body, inherited);
      // Nothing to start from: the builder knows the word, no store holds it.
      const user = base === "scratch" ? "" : (await this.#services.machines.images.resolve(base, { progress: (line) => log(this.#services, build, told(line)) })).config.user;
      const dockerfile = templateDockerfile(base, body.steps, user);
      ({ steps } = dockerfile);
      const context = join(work, "context");
      await mkdir(context);
      for (const hash of dockerfile.archives) await unpack(this.#archive(build.templateID, hash), join(context, hash));
      await writeFile(join(work, "Dockerfile"), dockerfile.text);
      const built = await this.#services.machines.builder.build({ dockerfile: join(work, "Dockerfile"), context, timeoutMs: LIMITS.templateBuildMs, progress: (line) => log(this.#services, build, told(line)), signal: this.#services.draining });
      memory = commands === null ? null : await this.#tryOut(build, built, commands, (line) => log(this.#services, build, told(line)));
      const createdAt = this.#services.runtime.now();
      for (const tag of build.tags) await this.#services.machines.images.tag(built, templateImage(build.templateID, tag));
      // Looked at last: nothing comes between this and what is written.
      const record = this.#templates.store.find(build.owner, build.templateID);
      if (record === null) {
        for (const tag of build.tags) await this.#services.machines.images.remove(templateImage(build.templateID, tag));
        throw new MwError("conflict", "the template was removed while it was built");
      }
      const tags = Object.fromEntries(build.tags.map((tag) => [tag, { digest: built.digest, buildID: build.buildID, createdAt, commands, memory }]));
      await this.#templates.put({ ...record, cpuCount: build.cpuCount, memoryMB: build.memoryMB, updatedAt: createdAt, tags: { ...record.tags, ...tags } });
      memory = null;
      log(this.#services, build, `built ${built.digest}`);
      build.status = "ready";
    } catch (error) {
      if (memory !== null) await this.#templates.dropRunning(memory);
      const step = stepOf(error, steps);
      build.reason = { message: told(messageOf(error)), ...(step === null ? {} : { step }) };
      log(this.#services, build, told(messageOf(error)), "error");
      build.status = "error";
    } finally {
      build.endedAt = this.#services.runtime.now();
      await rm(work, { recursive: true, force: true });
      // What was uploaded may be meant for another build of the same template.
      if (!this.list(build.owner, build.templateID).some(({ status }) => status === "waiting" || status === "building")) await rm(place, { recursive: true, force: true });
    }
  }

  /** In machines of their own. One of the network that sandboxes have is kept with what it started: it goes on in no other. */
  async #tryOut(build: Build, image: Image, commands: TemplateCommands, tell: (line: string) => void): Promise<string | null> {
    const { networks, memorySnapshot } = this.#services.machines.backend.capabilities;
    const widest = networks.includes("public") ? "public" : "none";
    const usual = this.#network.network ?? "none";
    if (!memorySnapshot || usual !== widest) {
      await this.#inMachine(build, image, commands, { network: widest }, tell, () => Promise.resolve()).catch((error: unknown) => {
        throw error instanceof NotReady ? error.cause : error;
      });
    }
    if (!memorySnapshot) return null;
    const keep = (sandbox: Sandbox, hub: ProcessHub): Promise<string> => hub.notes().then((processes) => this.#templates.keepRunning(build, sandbox, processes));
    return this.#inMachine(build, image, commands, { network: usual, ...(this.#network.allow === undefined ? {} : { allow: this.#network.allow }), checkpointable: true }, tell, keep).catch((error: unknown) => {
      if (usual === widest && error instanceof NotReady) throw error.cause;
      tell(`what runs is not kept, and is started in each sandbox: ${messageOf(error instanceof NotReady ? error.cause : error)}`);
      return null;
    });
  }

  /** Rejects `NotReady` when what is started does not get ready. */
  async #inMachine<T>(build: Build, image: Image, commands: TemplateCommands, how: Pick<SandboxSpec, "network" | "allow" | "checkpointable">, tell: (line: string) => void, then: (sandbox: Sandbox, hub: ProcessHub) => Promise<T>): Promise<T> {
    const { images, backend } = this.#services.machines;
    const memoryBytes = build.memoryMB === null || !backend.capabilities.isolation.enforced.memory ? {} : { memoryBytes: build.memoryMB * (1 << 20) };
    const sandbox = await backend.create({ root: await images.rootFilesystem(image), diskBytes: LIMITS.e2bDiskBytes, ...memoryBytes, ...how, labels: { purpose: "build" } });
    try {
      const { workdir } = await userOf(new Accounts(this.#services.runtime), sandbox, null);
      const hub = new ProcessHub(sandbox, { records: this.#processRecords, outlived: false });
      await startIn(sandbox, commands, { hub, workdir, runtime: this.#services.runtime, signal: this.#services.draining, log: tell }).catch((error: unknown) => {
        throw new NotReady("", { cause: error });
      });
      return await then(sandbox, hub);
    } finally {
      await sandbox.kill();
    }
  }

  async #base(owner: string, { fromImage, fromTemplate }: BuildBody): Promise<{ readonly image: string; readonly commands: TemplateCommands | null }> {
    if (fromImage !== undefined && fromTemplate !== undefined) throw new MwError("invalid_input", "a template starts from an image or a template, not both");
    if (fromTemplate !== undefined) {
      const { start, commands } = await this.#templates.find(owner, fromTemplate);
      if (start.image === undefined) throw new MwError("unsupported", "a template cannot be built on a snapshot");
      return { image: start.image, commands };
    }
    const reference = fromImage ?? "base";
    this.#services.sandboxes.images.check(owner, reference);
    return { image: (await this.#templates.image(owner, reference)) ?? reference, commands: null };
  }

  #archive(templateID: string, hash: string): string {
    return join(this.#directory, templateID, `${hash}.tar`);
  }
}

class NotReady extends Error {}

/** Its own, else those of the template that it is built on. */
function commandsNow({ startCmd, readyCmd }: BuildBody, inherited: TemplateCommands | null): TemplateCommands | null {
  const [start, ready] = [startCmd || null, readyCmd || null];
  return start === null && ready === null ? inherited : { start, ready };
}

/** Clients read ids of builds as UUIDs (RFC 9562, version 4). */
function uuidOf(bytes: Uint8Array): string {
  const own = Buffer.from(bytes);
  own[6] = ((own[6] ?? 0) & 0x0f) | 0x40;
  own[8] = ((own[8] ?? 0) & 0x3f) | 0x80;
  return own.toString("hex").replace(/^(.{8})(.{4})(.{4})(.{4})(.{12})$/, "$1-$2-$3-$4-$5");
}

async function unpack(archive: string, directory: string): Promise<void> {
  if (!existsSync(archive)) throw new MwError("invalid_input", "the files of a COPY step were not uploaded");
  await mkdir(directory);
  const writer = new TreeWriter(directory);
  const refused: string[] = [];
  try {
    for await (const event of readTar(await decompressed(createReadStream(archive), "the uploaded files"), { name: "the uploaded files", whiteouts: false, onRefused: ({ path, reason }) => void refused.push(`${path}: ${reason}`) })) {
      // Who they belong to is said by the step.
      await writer.push(event.type === "entry" ? { type: "entry", entry: { ...event.entry, uid: 0, gid: 0 } } : event);
    }
  } catch (error) {
    await writer.abort();
    throw error;
  }
  const report = await writer.finish();
  const first = refused[0] ?? report.refused[0]?.reason;
  if (first !== undefined) throw new MwError("invalid_input", `the uploaded files hold something that cannot be used: ${first}`);
}

function log({ runtime }: Services, build: Build, message: string, level: BuildLogEntry["level"] = "info"): void {
  if (build.logs.length < LIMITS.templateBuildLogs) build.logs.push({ timestamp: new Date(runtime.now()).toISOString(), message, level });
}

/** The builder names the instruction; clients want their step. */
function stepOf(error: unknown, steps: readonly number[]): string | null {
  if (error instanceof MwError && typeof error.facts["step"] === "number") return String(error.facts["step"]);
  const instruction = /\[[^\]]* (\d+)\/\d+\]/.exec(messageOf(error))?.[1];
  const step = instruction === undefined ? undefined : steps[Number(instruction) - 1];
  return step === undefined ? null : String(step);
}

function limited(most: number): (source: AsyncIterable<Buffer>) => AsyncGenerator<Buffer> {
  return async function* (source) {
    let bytes = 0;
    for await (const chunk of source) {
      bytes += chunk.length;
      if (bytes > most) throw new MwError("limit_exceeded", `the files of one step have at most ${most} bytes`);
      yield chunk;
    }
  };
}

/** `mw image build`: a Dockerfile into a named image. */
import { existsSync, statSync } from "node:fs";
import { join, resolve } from "node:path";
import { createImageBuilder } from "../../build/index.ts";
import { MwError } from "../../core/errors.ts";
import { openImageStore } from "../../image/index.ts";
import { openNativeBackend, type NetworkMode } from "../../sandbox/index.ts";
import { loadConfig } from "../config.ts";
import type { AppContext } from "../context.ts";
import type { MakeFlags } from "../image.ts";
import { networkOf } from "../network-commands.ts";
import { note, printable, printJson, printLine } from "../output.ts";

export interface ImageBuildFlags extends MakeFlags {
  readonly tag?: string;
  readonly file?: string;
  readonly buildArg?: readonly string[];
  readonly target?: string;
  readonly network?: NetworkMode;
  readonly allow?: readonly string[];
  readonly timeout?: number;
}

export async function buildImage(this: AppContext, flags: ImageBuildFlags, directory: string): Promise<void> {
  const config = loadConfig(this.env, this.cwd);
  const context = resolve(this.cwd, directory);
  if (!existsSync(context) || !statSync(context).isDirectory()) throw new MwError("invalid_input", `${context} is no directory`, { fix: "name the directory that COPY is to read from" });
  const dockerfile = flags.file === undefined ? join(context, "Dockerfile") : resolve(this.cwd, flags.file);
  const home = config.home.value;
  const backend = await openNativeBackend({ home, runtime: this.runtime });
  try {
    const images = await openImageStore({ home, aliases: config.imageAliases, cwd: this.cwd, env: this.env, runtime: this.runtime });
    const builder = createImageBuilder({ backend, images, directory: join(home, "build") });
    const image = await builder.build({
      dockerfile,
      context,
      args: Object.fromEntries((flags.buildArg ?? []).map(buildArgument)),
      ...(flags.target === undefined ? {} : { target: flags.target }),
      ...networkOf(flags),
      ...(flags.timeout === undefined ? {} : { timeoutMs: flags.timeout }),
      progress: flags.quiet ? () => undefined : (message) => note(this, printable(message)),
    });
    if (flags.tag !== undefined) await images.tag(image, flags.tag);
    if (flags.json) printJson(this, { digest: image.digest, name: flags.tag ?? null, layers: image.layers.length });
    else printLine(this, flags.tag === undefined ? image.digest : `${flags.tag} ${image.digest}`);
  } finally {
    await backend.close();
  }
}

function buildArgument(text: string): [string, string] {
  const at = text.indexOf("=");
  if (at <= 0) throw new MwError("usage", `--build-arg ${JSON.stringify(text)} is no NAME=VALUE`, { fix: "write --build-arg NAME=VALUE" });
  return [text.slice(0, at), text.slice(at + 1)];
}

/**
 * Extra layers over a root that has parts. A part is a mount of its own, which hides what the root's overlay has at its target: what a layer holds there has to
 * become a layer of the part as well.
 */
import { lstatSync } from "node:fs";
import { join } from "node:path";
import { MwError } from "../../../core/errors.ts";
import type { LayerMount, RootFilesystem } from "../../sandbox.ts";

/**
 * The root's parts with what the layers hold at or below their targets on top, and above that what `own` does: layers that a machine wrote, in which anything may lie; what is
 * no directory there is not shown.
 */
export function layeredParts(layers: readonly LayerMount[], parts: RootFilesystem["parts"], own: readonly string[] = []): RootFilesystem["parts"] {
  const named = withNamed(layers, parts);
  if (own.length === 0) return named;
  return named.map(({ target, layers: below }) => ({ target, layers: [...own.filter((layer) => holds(layer, target)).map((layer) => join(layer, target)), ...below] }));
}

function holds(layer: string, target: string): boolean {
  let path = layer;
  return target.split("/").slice(1).every((name) => lstatSync((path = join(path, name)), { throwIfNoEntry: false })?.isDirectory() === true);
}

/** The root's parts with what the layers hold at or below their targets on top. Throws `invalid_image` for a layer that has something else than directories on the way to one. */
function withNamed(layers: readonly LayerMount[], parts: RootFilesystem["parts"]): RootFilesystem["parts"] {
  if (layers.length === 0) return parts;
  return parts.map((part) => ({ ...part, layers: [...layers.filter((layer) => reaches(layer.path, part.target)).map((layer) => join(layer.path, part.target)), ...part.layers] }));
}

/** Whether the layer has the directory. Never through a link: it would lead out of the layer. */
function reaches(layer: string, target: string): boolean {
  let path = layer;
  for (const name of target.split("/").slice(1)) {
    path = join(path, name);
    const info = lstatSync(path, { throwIfNoEntry: false });
    if (info === undefined) return false;
    if (!info.isDirectory()) throw new MwError("invalid_image", `The layer ${layer} has something else than a directory at ${path.slice(layer.length)}, where the image mounts ${target}`, { fix: "Make the layer against the paths that the image has, without links on the way." });
  }
  return true;
}

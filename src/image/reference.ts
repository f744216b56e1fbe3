/** What a user's image name means. Parsing looks at the text only; whether the thing exists is found out by resolving. */
import { resolve } from "node:path";
import { MwError } from "../core/errors.ts";
import { isDigest } from "./digest.ts";
import type { ImageReference } from "./image.ts";

export type ParsedReference =
  | { readonly kind: "host" }
  | { readonly kind: "dir" | "tar"; readonly path: string }
  | { readonly kind: "oci" | "docker-archive"; readonly path: string; readonly tag: string | null }
  | { readonly kind: "mmdebstrap"; readonly suite: string; readonly packages: readonly string[] }
  | { readonly kind: "digest"; readonly digest: string }
  | { readonly kind: "name"; readonly name: RegistryName };

/** A registry reference, completed: `python:3.12` is `docker.io/library/python:3.12`. */
export interface RegistryName {
  readonly registry: string;
  readonly repository: string;
  readonly tag: string | null;
  readonly digest: string | null;
}

const SCHEMES = ["dir", "tar", "oci", "docker-archive", "mmdebstrap"] as const;

/** `cwd` is what relative paths are relative to. Throws `invalid_image` with what is wrong and what is allowed. */
export function parseImageReference(reference: ImageReference, cwd: string = process.cwd()): ParsedReference {
  const text = reference.trim();
  if (text === "host") return { kind: "host" };
  if (isDigest(text) || /^host:[0-9a-f]{64}$/.test(text)) return { kind: "digest", digest: text };
  const scheme = SCHEMES.find((name) => text.startsWith(`${name}:`));
  if (scheme === undefined) return { kind: "name", name: parseName(text) };
  const rest = text.slice(scheme.length + 1);
  if (rest === "") throw new MwError("invalid_image", `the image ${JSON.stringify(text)} names nothing after ${scheme}:`, { fix: scheme === "mmdebstrap" ? "write mmdebstrap:SUITE" : `write ${scheme}:PATH` });
  if (scheme === "mmdebstrap") return parseDebian(rest, text);
  if (scheme === "dir" || scheme === "tar") return { kind: scheme, path: resolve(cwd, rest) };
  // The first colon ends the path, as in other tools: a tag may be a whole reference with colons and slashes.
  const colon = rest.indexOf(":");
  const hasTag = colon > 0 && colon < rest.length - 1;
  return { kind: scheme, path: resolve(cwd, colon > 0 ? rest.slice(0, colon) : rest), tag: hasTag ? rest.slice(colon + 1) : null };
}

function parseDebian(rest: string, text: string): ParsedReference {
  const [suite = "", ...more] = rest.split("+");
  // A package name may itself hold a plus sign (`g++`): only the first separates.
  const packages = more.join("+").split(",").filter((name) => name !== "");
  const bad = [suite, ...packages].find((name) => !/^[a-z0-9][a-z0-9+.-]*$/.test(name));
  if (bad !== undefined) {
    throw new MwError("invalid_image", `the image ${JSON.stringify(text)} has no valid suite or package name ${JSON.stringify(bad)}`, { fix: "write mmdebstrap:SUITE or mmdebstrap:SUITE+package,package" });
  }
  return { kind: "mmdebstrap", suite, packages: [...new Set(packages)].sort() };
}

/** Grammar of https://github.com/distribution/reference. */
function parseName(text: string): RegistryName {
  const match = /^([^@]+?)(?::([\w][\w.-]{0,127}))?(?:@(.+))?$/.exec(text);
  let path = match?.[1] ?? "";
  const digest = match?.[3] ?? null;
  if (digest !== null && !isDigest(digest)) throw new MwError("invalid_image", `the image ${JSON.stringify(text)} has no valid digest`, { fix: "a digest is sha256: and 64 hex digits" });
  let registry = "docker.io";
  const first = path.split("/")[0] ?? "";
  if (path.includes("/") && (/[.:]/.test(first) || first === "localhost")) {
    registry = first === "index.docker.io" ? "docker.io" : first;
    path = path.slice(first.length + 1);
  }
  if (registry === "docker.io" && !path.includes("/")) path = `library/${path}`;
  const good = /^(?:[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*)(?:\/[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*)*$/.test(path) && path.length <= 255;
  if (match === null || !good || !/^[a-z0-9][\w.-]*(:\d{1,5})?$|^\[[0-9a-f:]+\](:\d{1,5})?$/i.test(registry)) {
    throw new MwError("invalid_image", `not an image name: ${JSON.stringify(text.slice(0, 300))}`, {
      fix: "write host, dir:PATH, tar:PATH, oci:PATH[:TAG], docker-archive:PATH[:TAG], mmdebstrap:SUITE[+package,...], or a name such as python:3.12-slim",
    });
  }
  return { registry, repository: path, tag: match[2] ?? (digest === null ? "latest" : null), digest };
}

/** The full form, the same for every way to write the name. */
export function fullName(name: RegistryName): string {
  return `${name.registry}/${name.repository}${name.tag === null ? "" : `:${name.tag}`}${name.digest === null ? "" : `@${name.digest}`}`;
}

/** As people write it: without the default registry and its `library/`. */
export function shortName(name: RegistryName): string {
  return fullName(name).replace(/^docker\.io\/(library\/)?/, "");
}

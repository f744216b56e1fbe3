/** A name that is neither here nor in the alias table: pulled from its registry. A tag is pulled once; `refresh` asks for it again. */
import { MwError } from "../core/errors.ts";
import { digestOf } from "./digest.ts";
import { mustBe } from "./layers.ts";
import { loadOci, type Descriptor } from "./oci.ts";
import { fullName, shortName, type RegistryName } from "./reference.ts";
import { RegistryClient } from "./registry/client.ts";
import { registryEndpoint } from "./registry/config.ts";
import { needed, type LoadedImage, type LoadOptions, type Source, type SourceContext } from "./source.ts";

export function registrySource(name: RegistryName, context: SourceContext | null): Source {
  return {
    name: fullName(name),
    label: shortName(name),
    fingerprint: () => Promise.resolve(null),
    load: async (options) => {
      const { home, env, runtime } = needed(context);
      const client = new RegistryClient(await registryEndpoint(name.registry, home, env), name.repository, runtime);
      try {
        return await pull(name, client, needed(context), options);
      } catch (error) {
        throw withAliasHint(error, name);
      } finally {
        await client.close();
      }
    },
  };
}

async function pull(name: RegistryName, client: RegistryClient, context: SourceContext, options: LoadOptions): Promise<LoadedImage> {
  const label = shortName(name);
  options.progress(`pulling ${label} from ${name.registry}`);
  const bytes = await client.manifest(name.digest ?? name.tag ?? "latest", options.signal);
  const digest = digestOf(bytes);
  mustBe(name.digest, digest, `the manifest of ${label}`, "digest");
  const root: Descriptor = { mediaType: "", digest, size: bytes.length };
  const source = {
    label,
    // The first document is here already.
    manifest: (descriptor: Descriptor, signal: AbortSignal) => (descriptor === root ? Promise.resolve(bytes) : client.manifest(descriptor.digest, signal)),
    blob: (descriptor: Descriptor, signal: AbortSignal) => Promise.resolve(client.blob(descriptor, signal)),
  };
  return loadOci(source, root, context.layers, options);
}

/** Packages that make a plain Debian resemble a well-known image. */
const SIMILAR: Readonly<Record<string, string>> = {
  python: "python3,python3-pip,python3-venv", node: "nodejs,npm", golang: "golang-go", gcc: "build-essential", rust: "cargo", ruby: "ruby", perl: "perl", php: "php-cli",
  openjdk: "default-jdk-headless", "eclipse-temurin": "default-jdk-headless", "buildpack-deps": "build-essential,git,curl,ca-certificates",
};

function withAliasHint(error: unknown, name: RegistryName): unknown {
  if (!(error instanceof MwError) || (error.facts["unreachable"] !== true && error.code !== "not_found")) return error;
  const similar = SIMILAR[name.repository.replace(/^library\//, "")];
  const target = `mmdebstrap:bookworm${similar === undefined ? "" : `+${similar}`}`;
  return new MwError(error.code, error.message, {
    fix: `${error.fix ?? ""}; without a registry, map the name to an image that can be made here, e.g. mw image alias ${shortName(name)} ${target}`.replace(/^; /, ""),
    cause: error,
    facts: error.facts,
  });
}

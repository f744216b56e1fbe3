/** Where images come from: each kind of reference has one source. */
import { debianSource } from "./debian.ts";
import { dockerArchiveSource } from "./docker-archive.ts";
import { hostSource } from "./host.ts";
import { ociSource } from "./oci-layout.ts";
import type { ParsedReference } from "./reference.ts";
import { registrySource } from "./registry-source.ts";
import { directorySource, tarSource } from "./root-sources.ts";
import type { Source, SourceContext } from "./source.ts";

/** Without a context only the name is of use. */
export function sourceOf(reference: Exclude<ParsedReference, { kind: "digest" }>, context: SourceContext | null): Source {
  switch (reference.kind) {
    case "host":
      return hostSource(context);
    case "dir":
      return directorySource(reference.path, context);
    case "tar":
      return tarSource(reference.path, context);
    case "oci":
      return ociSource(reference.path, reference.tag, context);
    case "docker-archive":
      return dockerArchiveSource(reference.path, reference.tag, context);
    case "mmdebstrap":
      return debianSource(reference.suite, reference.packages, context);
    case "name":
      return registrySource(reference.name, context);
  }
}

/** The files of a machine that has ended. Their reader is started with the first question and ends with the release. */
import type { SandboxId } from "../../../core/ids.ts";
import type { Workspace } from "../../sandbox.ts";
import type { Spawner } from "./spawner.ts";
import { WorkspaceReader } from "./workspace.ts";

export function sealedWorkspace(spawner: Spawner, id: SandboxId, bytes: number): Workspace {
  let reader: Promise<WorkspaceReader> | null = null;
  const open = (): Promise<WorkspaceReader> => {
    if (reader === null) {
      const opening = spawner.openWorkspace(id).then((path) => WorkspaceReader.connect(path));
      reader = opening;
      opening.catch(() => {
        reader = null;
      });
    }
    return reader;
  };
  return {
    id,
    bytes,
    changes: async () => (await open()).changes(),
    discard: async (paths) => (await open()).discard(paths),
    read: async (path, maxBytes) => (await open()).read(path, maxBytes),
    export: async (directory) => (await open()).export(directory),
    async release() {
      await reader?.then(
        (opened) => opened.close(),
        () => undefined,
      );
      await spawner.releaseWorkspace(id);
    },
  };
}

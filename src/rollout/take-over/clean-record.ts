/** What is taken out of the workspace of a rollout that is verified, beside its agent's record: a controller that goes on with the verification is to say the same of it. */
import { readFile } from "node:fs/promises";
import { join } from "node:path";
import { z } from "zod";
import { writeDurably } from "../../store/durable.ts";
import type { CleanJournal } from "../../task/verify/clean-workspace.ts";
import type { Sanitation } from "../../task/verify/sanitation.ts";
import { guarded } from "../recorder.ts";

const texts = z.array(z.string()).readonly();
const schema = z.object({
  format: z.literal(1),
  /** Base64: paths are bytes. */
  discard: texts,
  restored: texts,
  removed: texts,
  refreshLoaderCache: z.boolean(),
  pytestConfigChanged: z.boolean(),
  editable: z.array(z.object({ path: z.string(), content: z.string() })).readonly(),
  notes: texts,
});

/** `directory`: the rollout's, see `agent-record.ts`. */
export async function cleanJournal(directory: string): Promise<CleanJournal> {
  const path = join(directory, "cleaned.json");
  return {
    earlier: await read(path),
    write: ({ discard, ...rest }) => {
      const document: z.infer<typeof schema> = { format: 1, discard: discard.map((one) => Buffer.from(one).toString("base64")), ...rest };
      // The workspace does not outlive a power cut either.
      return guarded(directory, () => writeDurably(path, `${JSON.stringify(document)}\n`, "process"));
    },
  };
}

/** Null where nothing has been taken out. */
async function read(path: string): Promise<Sanitation | null> {
  const text = await readFile(path, "utf8").catch((error: unknown) => {
    if ((error as NodeJS.ErrnoException).code === "ENOENT") return null;
    throw error;
  });
  if (text === null) return null;
  const { format: _format, discard, ...rest } = schema.parse(JSON.parse(text));
  return { ...rest, discard: discard.map((one) => Buffer.from(one, "base64")) };
}

/** The record of the gates that a task passed or failed, in its directory, for the digest that they were run on. Not signed: it says what whoever wrote the directory says. */
import { join } from "node:path";
import { z } from "zod";
import { messageOf, MwError } from "../../core/errors.ts";
import { writeDurably } from "../../store/durable.ts";

/** No part of the task's digest. */
export const CERTIFICATE_FILE = "certificate.json";

export const certificateSchema = z.object({
  format: z.literal(1),
  task: z.string(),
  /** Of the content that was checked; null for a task whose content has none. */
  digest: z.string().nullable(),
  checkedAt: z.string(),
  /** Of the product. */
  version: z.string(),
  passed: z.boolean(),
  /** Why it did not pass, one sentence each. */
  failures: z.array(z.string()),
  lint: z.object({ errors: z.number().int(), warnings: z.number().int() }),
  /** What was run: the reference and doing nothing, in each mode that the task allows; seconds. */
  gates: z.array(z.object({ agent: z.enum(["oracle", "nop"]), mode: z.string(), outcome: z.string(), reward: z.number().nullable(), seconds: z.number() })),
  /** What was not the same between the modes. */
  differences: z.array(z.string()),
});
export type Certificate = z.infer<typeof certificateSchema>;

/** Returns its path. Rejects `environment` when the directory cannot be written. */
export async function writeCertificate(directory: string, certificate: Certificate): Promise<string> {
  const path = join(directory, CERTIFICATE_FILE);
  try {
    await writeDurably(path, `${JSON.stringify(certificate, null, 2)}\n`, "process");
  } catch (error) {
    throw new MwError("environment", `cannot write ${path}: ${messageOf(error)}`, { fix: "make the task's directory writable, or leave --certify out", cause: error });
  }
  return path;
}

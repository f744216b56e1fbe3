/** The same document as msgpack's with lists of numbers for the arrays: for looking at, and for programs that read nothing else. */
import type { DeliveredGroup, Lease } from "../delivery.ts";
import { headWithoutGroups, type EncodedLease } from "./encoding.ts";

export function encodeJson(lease: Lease): EncodedLease {
  return { contentType: "application/json", bytes: null, chunks: chunks(lease) };
}

function* chunks({ head, groups }: Lease): Generator<Uint8Array> {
  yield Buffer.from(`${JSON.stringify(headWithoutGroups(head)).slice(0, -1)},"groups":[`);
  for (const [index, group] of groups.entries()) yield Buffer.from(`${index === 0 ? "" : ","}${JSON.stringify(documentOf(group))}`);
  yield Buffer.from("]}");
}

function documentOf({ facts, samples }: DeliveredGroup): Record<string, unknown> {
  return {
    ...facts,
    samples: samples.map(({ facts: of, arrays }) => ({
      ...of,
      token_ids: Array.from(arrays.tokenIds),
      loss_mask: Array.from(arrays.lossMask),
      logprobs: Array.from(arrays.logprobs),
      versions: Array.from(arrays.versions),
    })),
  };
}

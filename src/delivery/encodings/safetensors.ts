/**
 * One safetensors file: the arrays of all samples of all groups behind one another, the head as JSON in the metadata under `lease`. The arrays go out as they were stored, so nothing is
 * done for a token.
 */
import { safetensorsHead } from "../safetensors-head.ts";
import type { Lease } from "../delivery.ts";
import { bytesOf, type EncodedLease } from "./encoding.ts";

const FORMAT = "manyworlds-lease-1";

export function encodeSafetensors({ head, groups }: Lease): EncodedLease {
  const samples = groups.reduce((sum, group) => sum + group.samples.length, 0);
  const tokens = groups.reduce((sum, { flat }) => sum + flat.tokenIds.length, 0);
  const start = safetensorsHead({ format: FORMAT, lease: JSON.stringify(head) }, samples, tokens);
  return { contentType: "application/x-safetensors", bytes: start.length + 8 * (samples + 1) + 13 * tokens, chunks: chunks({ head, groups }, start, samples) };
}

function* chunks({ groups }: Lease, start: Buffer, samples: number): Generator<Uint8Array> {
  yield start;
  const offsets = new BigInt64Array(samples + 1);
  let at = 0;
  let end = 0n;
  for (const group of groups) {
    for (const { arrays } of group.samples) {
      end += BigInt(arrays.tokenIds.length);
      offsets[++at] = end;
    }
  }
  yield bytesOf(offsets);
  for (const name of ["tokenIds", "logprobs", "versions", "lossMask"] as const) for (const { flat } of groups) yield bytesOf(flat[name]);
}

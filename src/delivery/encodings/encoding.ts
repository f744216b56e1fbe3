/** A lease as bytes, in one of the forms that trainers read. */
import type { LeaseHead } from "../contract.ts";
import type { Lease } from "../delivery.ts";

export interface EncodedLease {
  readonly contentType: string;
  /** Where it is known beforehand. */
  readonly bytes: number | null;
  /** Made while it is read, so that a slow reader costs no memory beyond the lease's own. */
  readonly chunks: Iterable<Uint8Array>;
}

export type Encoding = (lease: Lease) => EncodedLease;

/** Everything of the head but its groups, which come last in every document. */
export function headWithoutGroups({ groups: _groups, ...head }: LeaseHead): Omit<LeaseHead, "groups"> {
  return head;
}

export function bytesOf(array: ArrayBufferView): Uint8Array {
  return new Uint8Array(array.buffer, array.byteOffset, array.byteLength);
}

/** A lease's name says which run it belongs to, so that a lease is all that a trainer needs to keep. `~` is in no run's name. */
export function newLeaseId(run: string, epoch: number, count: number): string {
  return `${run}~${epoch}.${count}`;
}

/** Name of the run, or null for what is no lease's name. */
export function runOfLease(lease: string): string | null {
  return /^([A-Za-z0-9._:-]{1,128})~\d+\.\d+$/.exec(lease)?.[1] ?? null;
}

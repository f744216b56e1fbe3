/**
 * The append-only log of one run: the truth from which every state is folded. One writer at a time, fenced by the controller's epoch; many readers, also while it
 * grows and after the writer died at any byte.
 */
export interface LogEvent {
  readonly type: string;
  /** Version of this event type's shape. */
  readonly v: number;
  readonly [field: string]: unknown;
}

export interface StoredEvent {
  readonly seq: number;
  /** Wall clock, ISO 8601 with milliseconds. */
  readonly at: string;
  readonly epoch: number;
  readonly event: LogEvent;
}

export interface EventLog {
  /** Sequence number of the last event, 0 when empty. */
  readonly lastSeq: number;
  /**
   * Appends and resolves when the events survive the death of any process (`durability: "process"`) or a power cut (`"power"`). Concurrent appends are committed in
   * groups, in call order. Rejects `conflict` when `expectedSeq` is given and not the last, or when a higher epoch has written. `at` is the time that is recorded,
   * milliseconds since the epoch; default now.
   */
  append(events: readonly LogEvent[], options?: { readonly expectedSeq?: number; readonly at?: number }): Promise<number>;
  read(fromSeq?: number): AsyncIterable<StoredEvent>;
  close(): Promise<void>;
}

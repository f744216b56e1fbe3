/** From what the user says about the model server to the upstream that talks to it. */
import { systemRuntime, type Runtime } from "../../core/runtime.ts";
import { ChatUpstream } from "./chat/chat.ts";
import type { UpstreamSpec } from "./spec.ts";
import type { Upstream } from "./upstream.ts";

export interface OpenUpstreamOptions {
  /** Stays in this process: it is in no record and no message. */
  readonly apiKey: string | null;
  readonly runtime?: Runtime;
  readonly stallMs?: number;
}

/** Connects lazily: nothing is sent before the first call. */
export function openUpstream(spec: UpstreamSpec, { runtime = systemRuntime, ...options }: OpenUpstreamOptions): Upstream {
  return new ChatUpstream({ spec, runtime, ...options });
}

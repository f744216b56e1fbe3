/** From what the user says about the model server to the upstream that talks to it. */
import { systemRuntime, type Runtime } from "../../core/runtime.ts";
import type { Renderer } from "../render/renderer.ts";
import { ChatUpstream } from "./chat/chat.ts";
import type { UpstreamSpec } from "./spec.ts";
import { TokensUpstream } from "./tokens/upstream.ts";
import type { Upstream } from "./upstream.ts";

export interface OpenUpstreamOptions {
  /** Stays in this process: it is in no record and no message. */
  readonly apiKey: string | null;
  readonly runtime?: Runtime;
  readonly stallMs?: number;
  /** With it the gateway renders prompts itself and the server is given token ids. Absent: the server renders, by its chat endpoint. */
  readonly renderer?: Renderer | undefined;
}

/** Connects lazily: nothing is sent before the first call. */
export function openUpstream(spec: UpstreamSpec, { runtime = systemRuntime, renderer, ...options }: OpenUpstreamOptions): Upstream {
  return renderer === undefined ? new ChatUpstream({ spec, runtime, ...options }) : new TokensUpstream({ spec, runtime, renderer, ...options });
}

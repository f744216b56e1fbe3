/** A run that another process drives, as its log says, over a connection that may break: what was seen is never seen twice, and nothing is left out. */
import { z } from "zod";
import { SseParser } from "../gateway/sse.ts";
import { fromLogEvent, type RunEvent } from "../rollout/events.ts";
import { RunState } from "../rollout/run-state.ts";
import { ConnectionLost, type ServerClient } from "./server-client.ts";

const Message = z.object({ events: z.array(z.object({ seq: z.int(), at: z.string(), event: z.looseObject({ type: z.string(), v: z.number() }) })) });

export class FollowedRun {
  readonly state = new RunState();
  readonly #client: ServerClient;
  readonly #run: string;
  readonly #changed: (state: RunState, event: RunEvent) => void;
  #seq = 0;

  constructor(client: ServerClient, run: string, changed: (state: RunState, event: RunEvent) => void) {
    this.#client = client;
    this.#run = run;
    this.#changed = changed;
  }

  /** Rollouts that are under way. */
  get active(): number {
    let active = 0;
    for (const { phase } of this.state.rollouts.values()) if (phase !== "planned" && phase !== "recorded") active++;
    return active;
  }

  /** Takes in what there is and what comes, until the server ends the stream. Rejects `ConnectionLost` where it broke off. */
  async follow(signal: AbortSignal): Promise<void> {
    const { body } = await this.#client.open("GET", `/v1/runs/${this.#run}/events?after=${this.#seq}`, undefined, signal);
    const parser = new SseParser();
    try {
      for await (const chunk of body ?? []) {
        for (const { event, data } of parser.push(chunk)) if (event === "events") this.#take(data);
      }
    } catch (error) {
      signal.throwIfAborted();
      if (error instanceof TypeError) throw new ConnectionLost(error.message, { cause: error });
      throw error;
    }
  }

  #take(data: string): void {
    for (const { seq, at, event: stored } of Message.parse(JSON.parse(data)).events) {
      if (seq <= this.#seq) continue;
      const event = fromLogEvent(stored);
      this.state.apply(event, Date.parse(at));
      this.#seq = seq;
      this.#changed(this.state, event);
    }
  }
}

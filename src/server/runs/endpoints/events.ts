/** The log of a run, event for event, for whoever folds it as we do: what `mw run --server` shows is made from it. */
import { z } from "zod";
import type { StoredEvent } from "../../../store/event-log.ts";
import { readLog, startOfLog } from "../../../store/log-reader.ts";
import { eventsFile } from "../../../store/run-directory.ts";
import { endpoint, type AnyEndpoint } from "../../endpoint.ts";
import { lastEventId, type ReadContext } from "../http.ts";
import { ofRun } from "./run.ts";

/** One message of the stream: about so much, at least one event. */
const MESSAGE_BYTES = 256 * 1024;

export function eventsEndpoint({ library, streams, home }: ReadContext): AnyEndpoint {
  return endpoint({
    method: "GET",
    path: "/v1/runs/{run}/events",
    id: "followEvents",
    summary: "Server-sent events `events`: what is in the run's log behind Last-Event-ID (or the query's `after`), as {events: [{seq, at, event}]}, and what comes",
    params: ofRun,
    query: z.strictObject({ after: z.coerce.number().int().nonnegative().default(0), lastEventId: z.string().exactOptional() }),
    responses: { 200: { description: "Events until the run is over", contentTypes: ["text/event-stream"] } },
    handle: async ({ params, query, request, reply }) => {
      const { run } = await library.open(params.run);
      const after = lastEventId(request) ?? query.after;
      const position = startOfLog();
      await streams.follow(reply, async () => {
        // Looks again whether the directory is there.
        const { status, seq } = await library.open(run);
        const events: StoredEvent[] = [];
        let bytes = 0;
        if (seq > position.lastSeq) {
          for await (const stored of readLog(eventsFile(home, run), position)) {
            if (stored.seq <= after) continue;
            events.push(stored);
            bytes += JSON.stringify(stored.event).length;
            if (bytes >= MESSAGE_BYTES) break;
          }
        }
        const told = events.map(({ seq: at, at: when, event }) => ({ seq: at, at: when, event }));
        const last = status !== "running" && position.lastSeq >= seq;
        return { events: told.length === 0 ? [] : [{ id: String(position.lastSeq), event: "events", data: { events: told } }], last };
      });
    },
  });
}

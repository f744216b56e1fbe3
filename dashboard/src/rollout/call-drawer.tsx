/** One model call as it went over the wire. */
import { useState, type ReactNode } from "react";
import type { RawCall } from "../../../src/server/runs/contract/calls.ts";
import { save } from "../lib/api.ts";
import { bytes, duration, moment } from "../lib/format.ts";
import { visible } from "../lib/hostile.ts";
import { useData } from "../lib/hooks.ts";
import { Copy, Failed, Out, Pill, Skeleton } from "../parts/basics.tsx";

export function CallDrawer({ rollout, number, onClose }: { readonly rollout: string; readonly number: number; readonly onClose: () => void }): ReactNode {
  const { data, error } = useData<RawCall>(`/v1/rollouts/${rollout}/calls/${number}`);
  const [side, setSide] = useState<"request" | "response">("request");
  const call = data?.number === number ? data : undefined;
  const text = side === "request" ? call?.request : call?.response;
  const characters = side === "request" ? call?.requestCharacters : call?.responseCharacters;
  return (
    <aside className="drawer" aria-label={`Call ${number}`}>
      <header>
        <div className="line"><h1>Call {number}</h1>{call !== undefined && <><Pill tone={call.status === "complete" ? "good" : "bad"}>{call.status}</Pill><span className="chip">{call.dialect === "turn" ? "internal turn" : call.dialect}</span></>}</div>
        <button type="button" className="button small" onClick={onClose} aria-label="Close the call">Close</button>
      </header>
      <div className="body">
        {call === undefined ? error === null ? <Skeleton lines={8} /> : <Failed error={error} /> : (
          <>
            <dl className="facts">
              <dt>Model</dt><dd>{visible(call.model).text}</dd>
              <dt>At</dt><dd>{moment(call.at)}, {duration(call.durationMs)}</dd>
              <dt>Sampling</dt><dd className="mono">{samplingText(call.sampling)}</dd>
              {call.notes.length > 0 && <><dt>Notes</dt><dd>{call.notes.map((note) => <div key={note}>{visible(note).text}</div>)}</dd></>}
              {call.failure !== null && <><dt>Failure</dt><dd className="badtext">{visible(JSON.stringify(call.failure)).text}</dd></>}
            </dl>
            <div className="line">
              <div className="buttons">
                <button type="button" className="button small" aria-pressed={side === "request"} onClick={() => setSide("request")}>Request</button>
                <button type="button" className="button small" aria-pressed={side === "response"} onClick={() => setSide("response")}>Response</button>
              </div>
              <span className="grow" />
              {text != null && <Copy text={text} />}
              <button type="button" className="button small" onClick={() => void save(`/v1/rollouts/${rollout}/calls/${number}/${side}`, `call-${number}-${side}.json`)}>Save ({bytes(characters ?? 0)})</button>
            </div>
            {side === "response" && <p className="faint" style={{ fontSize: 12 }}>What was answered, written in the dialect of the request.</p>}
            {text == null ? <p className="muted">{(characters ?? 0) === 0 ? "There was none." : "Too long to be shown; save it."}</p> : <Out text={text} most={60_000} />}
          </>
        )}
      </div>
    </aside>
  );
}

function samplingText(sampling: unknown): string {
  if (typeof sampling !== "object" || sampling === null) return "as the server has it";
  const given = Object.entries(sampling).filter(([, value]) => value !== null && !(Array.isArray(value) && value.length === 0));
  return given.length === 0 ? "as the server has it" : visible(given.map(([name, value]) => `${name} ${JSON.stringify(value)}`).join(", ")).text;
}

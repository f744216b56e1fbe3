/** A mark and a note on a run, a group or a rollout. */
import { useEffect, useState, type ReactNode } from "react";
import { useQueryClient } from "@tanstack/react-query";
import type { MarkRequest, MarkView } from "../../../src/server/runs/contract/marks.ts";
import { sendJson } from "../lib/api.ts";
import { useData, useKeys } from "../lib/hooks.ts";

export const MARK_SIGNS: Readonly<Record<string, string>> = { star: "★", good: "✓", bad: "✗", question: "?" };
const NAMES: Readonly<Record<string, string>> = { star: "Star", good: "Good", bad: "Bad", question: "Look again" };

export function MarkBox({ run, target, keys = false }: { readonly run: string; readonly target: string; readonly keys?: boolean }): ReactNode {
  const { data } = useData<{ readonly marks: readonly MarkView[] }>(`/v1/runs/${run}/marks`);
  const client = useQueryClient();
  const mark = data?.marks.find((one) => one.target === target) ?? null;
  const [open, setOpen] = useState(false);
  const [note, setNote] = useState("");
  const [error, setError] = useState("");
  useEffect(() => setNote(mark?.note ?? ""), [mark?.note, target]);
  const put = (request: MarkRequest): void => {
    void sendJson("PUT", `/v1/runs/${run}/marks/${target}`, request).then(
      () => {
        setError("");
        void client.invalidateQueries({ predicate: ({ queryKey: [path] }) => typeof path === "string" && (path === `/v1/runs/${run}/marks` || path.includes("/rollouts")) });
      },
      (failure: Error) => setError(failure.message),
    );
  };
  const toggle = (name: NonNullable<MarkRequest["mark"]>): void => put({ mark: mark?.mark === name ? null : name, note: mark?.note ?? "" });
  useKeys(keys ? { s: () => toggle("star"), "+": () => toggle("good"), "-": () => toggle("bad"), n: () => setOpen(true) } : {});
  return (
    <div className="stack" style={{ gap: 6, alignItems: "flex-end" }}>
      <div className="buttons">
        {(["star", "good", "bad", "question"] as const).map((name) => (
          <button key={name} type="button" className="button small" aria-pressed={mark?.mark === name} aria-label={NAMES[name]} title={NAMES[name]} onClick={() => toggle(name)}>
            {MARK_SIGNS[name]}
          </button>
        ))}
        <button type="button" className="button small" aria-pressed={open || (mark?.note ?? "") !== ""} onClick={() => setOpen(!open)}>Note</button>
      </div>
      {open && (
        <form className="stack" style={{ gap: 6, width: "min(360px, 86vw)" }} onSubmit={(event) => { event.preventDefault(); put({ mark: mark?.mark ?? null, note }); setOpen(false); }}>
          <textarea className="input" aria-label="Note" autoFocus value={note} maxLength={16_384} onChange={({ target: field }) => setNote(field.value)} />
          <button type="submit" className="button primary small" style={{ alignSelf: "flex-end" }}>Save note</button>
        </form>
      )}
      {error !== "" && <span className="badtext" role="alert">{error}</span>}
    </div>
  );
}

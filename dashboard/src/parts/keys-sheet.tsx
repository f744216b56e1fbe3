/** The keys of the page. */
import { useEffect, useRef, type ReactNode } from "react";

const KEYS: readonly (readonly [readonly string[], string])[] = [
  [["?"], "this list"],
  [["g r", "g t", "g d", "g s"], "to runs, tasks, trainer, sandboxes"],
  [["/"], "to the filter or search"],
  [["j", "k"], "next and previous row, message, command or trained stretch"],
  [["Enter"], "open the row"],
  [["[", "]"], "previous and next rollout or group"],
  [["1 … 9"], "views of a run or rollout"],
  [["s", "+", "-"], "star, mark as good, mark as bad"],
  [["←", "→"], "on the timeline: to the step before and after"],
  [["m", "p", "v"], "tokens: colour by mask, probability, version"],
  [["T"], "light or dark"],
  [["Esc"], "close, or leave a field"],
];

export function KeysSheet({ onClose }: { readonly onClose: () => void }): ReactNode {
  const close = useRef<HTMLButtonElement>(null);
  useEffect(() => close.current?.focus(), []);
  return (
    <div className="veil" onClick={(event) => event.target === event.currentTarget && onClose()}>
      <dialog open className="sheet" aria-label="Keys" onKeyDown={(event) => event.key === "Escape" && onClose()}>
        <div className="line" style={{ justifyContent: "space-between", marginBottom: 12 }}>
          <h1>Keys</h1>
          <button type="button" ref={close} className="button small" onClick={onClose}>Close</button>
        </div>
        <dl className="keys">
          {KEYS.map(([keys, what]) => (
            <div key={what} style={{ display: "contents" }}>
              <dt>{keys.map((key) => <kbd key={key} style={{ marginRight: 4 }}>{key}</kbd>)}</dt>
              <dd>{what}</dd>
            </div>
          ))}
        </dl>
      </dialog>
    </div>
  );
}

/** A shell in a living machine, over a WebSocket: binary frames are its bytes, both ways; text frames are control. */
import { useEffect, useRef, useState, type ReactNode } from "react";
import { currentKey } from "../lib/api.ts";
import { visible } from "../lib/hostile.ts";
import { openTerminal } from "./terminal.tsx";

const PROTOCOL = "mw.v1";

export function Shell({ sandbox, onClose }: { readonly sandbox: string; readonly onClose: () => void }): ReactNode {
  const place = useRef<HTMLDivElement>(null);
  const [said, setSaid] = useState("");
  useEffect(() => {
    if (place.current === null) return undefined;
    const { terminal, fit, close } = openTerminal(place.current, { interactive: true });
    fit();
    const key = currentKey();
    const scheme = location.protocol === "https:" ? "wss" : "ws";
    const socket = new WebSocket(`${scheme}://${location.host}/v1/sandboxes/${sandbox}/shell?columns=${terminal.cols}&rows=${terminal.rows}`, key === null ? [PROTOCOL] : [PROTOCOL, `mw.key.${key}`]);
    socket.binaryType = "arraybuffer";
    const encoder = new TextEncoder();
    const typed = terminal.onData((text) => socket.readyState === WebSocket.OPEN && socket.send(encoder.encode(text)));
    const resized = terminal.onResize(({ cols, rows }) => socket.readyState === WebSocket.OPEN && socket.send(JSON.stringify({ resize: { columns: cols, rows } })));
    socket.addEventListener("message", ({ data }: MessageEvent<ArrayBuffer | string>) => {
      if (typeof data !== "string") {
        terminal.write(new Uint8Array(data));
        return;
      }
      const message = JSON.parse(data) as { readonly exit?: { readonly code?: number }; readonly error?: { readonly detail?: string } };
      setSaid(message.error === undefined ? `The shell ended with ${message.exit?.code ?? "?"}.` : (message.error.detail ?? "The shell failed."));
    });
    socket.addEventListener("open", () => terminal.focus());
    socket.addEventListener("close", ({ code }) => setSaid((before) => (before === "" ? `The connection ended (${code}).` : before)));
    return () => {
      typed.dispose();
      resized.dispose();
      socket.close();
      close();
    };
  }, [sandbox]);
  return (
    <section className="card" aria-label="Shell">
      <div className="toolbar">
        <span className="muted" role="status">{said === "" ? "It ends with this page." : visible(said).text}</span>
        <span className="grow" />
        <button type="button" className="button small" onClick={onClose}>Close</button>
      </div>
      <div ref={place} data-terminal style={{ height: "min(56vh, 640px)", padding: 8, background: "#14151b", borderRadius: "0 0 9px 9px" }} />
    </section>
  );
}

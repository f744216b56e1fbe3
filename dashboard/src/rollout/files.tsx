/** Everything in the rollout's directory. */
import { useState, type ReactNode } from "react";
import type { FilesView } from "../../../src/server/runs/contract/rollout.ts";
import { query, request, save } from "../lib/api.ts";
import { bytes } from "../lib/format.ts";
import { visible } from "../lib/hostile.ts";
import { useData, useParam } from "../lib/hooks.ts";
import { Card, Empty, Failed, Out, Skeleton } from "../parts/basics.tsx";

export function Files({ rollout }: { readonly rollout: string }): ReactNode {
  const { data, error } = useData<FilesView>(`/v1/rollouts/${rollout}/files`);
  const [path, setPath] = useParam("path");
  if (data === undefined) return error === null ? <Skeleton lines={6} /> : <Failed error={error} />;
  if (data.files.length === 0) return <Empty title="There are no files yet" />;
  return (
    <div className="cards">
      <Card title={`Files${data.truncated ? " (the first of them)" : ""}`}>
        <ul style={{ maxHeight: "70vh", overflow: "auto" }} tabIndex={0}>
          {data.files.map((file) => (
            <li key={file.path} className="line" style={{ flexWrap: "nowrap", padding: "2px 0", paddingLeft: 14 * (file.path.split("/").length - 1) }}>
              {file.kind === "file" ? (
                <button type="button" className={`button small ghost mono ellipsis${path === file.path ? " link" : ""}`} style={{ textAlign: "left" }} onClick={() => setPath(file.path)}>{visible(file.path.split("/").at(-1) ?? "").text}</button>
              ) : (
                <span className="mono muted" style={{ padding: "2px 8px", fontSize: 12 }}>{visible(file.path.split("/").at(-1) ?? "").text}{file.kind === "directory" ? "/" : ` (${file.kind}, not followed)`}</span>
              )}
              <span className="grow" />
              {file.kind === "file" && <span className="faint" style={{ fontSize: 12 }}>{bytes(file.bytes)}</span>}
            </li>
          ))}
        </ul>
      </Card>
      {path !== "" && <OneFile key={path} rollout={rollout} path={path} size={data.files.find((file) => file.path === path)?.bytes ?? 0} />}
    </div>
  );
}

function OneFile({ rollout, path, size }: { readonly rollout: string; readonly path: string; readonly size: number }): ReactNode {
  const [text, setText] = useState<string | null>(null);
  const [failure, setFailure] = useState<Error | null>(null);
  const [asked, setAsked] = useState(false);
  if (!asked) {
    setAsked(true);
    void request(`/v1/rollouts/${rollout}/file${query({ path })}`).then(async (response) => setText(new TextDecoder().decode(await response.arrayBuffer())), setFailure);
  }
  return (
    <Card title={<span className="mono">{visible(path).text}</span>} actions={<button type="button" className="button small" onClick={() => void save(`/v1/rollouts/${rollout}/download${query({ path })}`, path.split("/").at(-1) ?? "file")}>Save ({bytes(size)})</button>}>
      {failure !== null ? <Failed error={failure} /> : text === null ? <Skeleton /> : text === "" ? <p className="faint">empty</p> : <Out text={text} box most={40_000} />}
    </Card>
  );
}

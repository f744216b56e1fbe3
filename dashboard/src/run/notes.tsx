/** What people have marked and noted in a run. */
import type { ReactNode } from "react";
import { Link } from "wouter";
import type { MarkView } from "../../../src/server/runs/contract/marks.ts";
import { moment } from "../lib/format.ts";
import { visible } from "../lib/hostile.ts";
import { useData } from "../lib/hooks.ts";
import { Card, Empty, Failed, Skeleton } from "../parts/basics.tsx";
import { MARK_SIGNS } from "../parts/mark-box.tsx";

export function RunNotes({ run }: { readonly run: string }): ReactNode {
  const { data, error } = useData<{ readonly marks: readonly MarkView[] }>(`/v1/runs/${run}/marks`);
  if (data === undefined) return error === null ? <Skeleton /> : <Failed error={error} />;
  if (data.marks.length === 0) return <Empty title="Nothing is marked"><p>In a list or on a rollout: <kbd>s</kbd> sets a star, <kbd>+</kbd> and <kbd>-</kbd> say good and bad. Marks and notes lie in the run’s directory.</p></Empty>;
  return (
    <Card title="Marks and notes" flush>
      <table style={{ marginTop: 6 }}>
        <thead><tr><th>Mark</th><th>On</th><th>Note</th><th className="num">When</th></tr></thead>
        <tbody>
          {data.marks.toReversed().map(({ target, mark, note, at }) => (
            <tr key={target}>
              <td className="warntext">{mark === null ? "" : MARK_SIGNS[mark]}</td>
              <td className="mono"><Link className="link" href={target === run ? `/runs/${run}` : target.startsWith("grp") ? `/runs/${run}/groups/${target}` : `/rollouts/${target}`}>{target}</Link></td>
              <td className="prose">{visible(note).text}</td>
              <td className="num muted">{moment(at)}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </Card>
  );
}

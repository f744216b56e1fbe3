/** What decided what a run did. */
import type { ReactNode } from "react";
import type { RunReport } from "../../../src/server/runs/contract/run.ts";
import { visible } from "../lib/hostile.ts";
import { dollars } from "../lib/format.ts";
import { Card, Copy, Empty } from "../parts/basics.tsx";

export function RunConfig({ report }: { readonly report: RunReport }): ReactNode {
  const { config } = report;
  if (config === null) return <Empty title="The configuration cannot be read"><p>run.json is missing, or of another version.</p></Empty>;
  const rows: readonly (readonly [string, ReactNode])[] = [
    ["Inputs", config.inputs.map((input) => <div key={input}><code>{visible(input).text}</code></div>)],
    ["Harnesses", visible(config.harnesses.join(", ")).text],
    ["Model", visible(config.model ?? "none").text],
    ["Upstream", visible(config.upstream ?? "none").text],
    ["Tokenizer", config.tokenizer ? "prompts are rendered here" : "the model server's"],
    ["Prices", config.prices === null ? "none given (mw run --price)" : `${dollars(config.prices.input)} a million tokens in prompts, ${dollars(config.prices.cached)} cached, ${dollars(config.prices.output)} sampled; ${dollars(config.prices.machine)} an hour of a machine`],
    ["Attempts at each task", config.attempts],
    ["At once", config.concurrency],
    ["Seed", <code key="seed">{visible(config.seed).text}</code>],
    ["Network", config.network ?? "what tasks declare"],
    ["Made by", `version ${config.version}`],
    ["Directory", <span key="directory"><code>{report.directory}</code> <Copy text={report.directory} /></span>],
  ];
  return (
    <Card title="Configuration">
      <dl className="facts">{rows.map(([name, value]) => <div key={name} style={{ display: "contents" }}><dt>{name}</dt><dd>{value}</dd></div>)}</dl>
    </Card>
  );
}

/** The syntax tree of a template, as `@huggingface/jinja` parses it; its nodes are not exported by name. */
import { parse, tokenize } from "@huggingface/jinja";

export type Expression =
  | { readonly type: "IntegerLiteral" | "FloatLiteral"; readonly value: number }
  | { readonly type: "StringLiteral" | "Identifier"; readonly value: string }
  | { readonly type: "ArrayLiteral" | "TupleLiteral"; readonly value: readonly Expression[] }
  | { readonly type: "ObjectLiteral"; readonly value: ReadonlyMap<Expression, Expression> }
  | { readonly type: "MemberExpression"; readonly object: Expression; readonly property: Expression; readonly computed: boolean }
  | CallExpression
  | { readonly type: "BinaryExpression"; readonly operator: { readonly value: string }; readonly left: Expression; readonly right: Expression }
  | { readonly type: "UnaryExpression"; readonly operator: { readonly value: string }; readonly argument: Expression }
  | { readonly type: "FilterExpression"; readonly operand: Expression; readonly filter: Filter }
  | { readonly type: "TestExpression"; readonly operand: Expression; readonly negate: boolean; readonly test: Name }
  /** In expressions: `x if test`; as what a loop runs over: `x if test` for each item. */
  | { readonly type: "SelectExpression"; readonly lhs: Expression; readonly test: Expression }
  | { readonly type: "Ternary"; readonly condition: Expression; readonly trueExpr: Expression; readonly falseExpr: Expression }
  | SliceExpression
  | { readonly type: "KeywordArgumentExpression"; readonly key: Name; readonly value: Expression }
  | { readonly type: "SpreadExpression" | "KeywordSpreadExpression"; readonly argument: Expression };

export interface Name {
  readonly type: "Identifier";
  readonly value: string;
}

export interface CallExpression {
  readonly type: "CallExpression";
  readonly callee: Expression;
  readonly args: readonly Expression[];
}

export interface SliceExpression {
  readonly type: "SliceExpression";
  readonly start: Expression | undefined;
  readonly stop: Expression | undefined;
  readonly step: Expression | undefined;
}

export type Filter = Name | CallExpression;

export type Statement =
  | { readonly type: "Program"; readonly body: readonly Statement[] }
  | { readonly type: "If"; readonly test: Expression; readonly body: readonly Statement[]; readonly alternate: readonly Statement[] }
  | { readonly type: "For"; readonly loopvar: Expression; readonly iterable: Expression; readonly body: readonly Statement[]; readonly defaultBlock: readonly Statement[] }
  | { readonly type: "Break" | "Continue" | "Comment" }
  | { readonly type: "Set"; readonly assignee: Expression; readonly value: Expression | null; readonly body: readonly Statement[] }
  | { readonly type: "Macro"; readonly name: Name; readonly args: readonly Expression[]; readonly body: readonly Statement[] }
  | { readonly type: "CallStatement"; readonly call: CallExpression; readonly callerArgs: readonly Expression[] | null; readonly body: readonly Statement[] }
  | { readonly type: "FilterStatement"; readonly filter: Filter; readonly body: readonly Statement[] }
  | Expression;

/** Throws on a template that does not parse. */
export function parseTemplate(source: string): readonly Statement[] {
  // With the whitespace control that transformers sets for chat templates.
  const program: unknown = parse(tokenize(source, { lstrip_blocks: true, trim_blocks: true }));
  return (program as { readonly body: readonly Statement[] }).body;
}

/**
 * The calls of a session as a tree by their tokens: a call hangs below the one whose whole sequence (prompt and completion) its prompt begins with. Nothing is matched by
 * text, so a token of an answer is followed only by what the engine really saw after it.
 */
import type { Call } from "../call.ts";
import type { CallTokens } from "../upstreams/upstream.ts";
import type { CallKind } from "../trace/trace.ts";

/** A call whose tokens are known in full. */
export interface TokenCall {
  readonly call: Call;
  readonly kind: CallKind;
  /** The call whose answer its messages go on from, as the trace has it. */
  readonly continues: number | null;
  readonly tokens: CallTokens & { readonly logprobs: readonly number[] };
}

export interface TokenNode extends TokenCall {
  readonly parent: TokenNode | null;
  /** False: the prompt differs from the parent's sequence within the parent's completion, and holds the harness's own spelling of it. */
  readonly exact: boolean;
  readonly children: TokenNode[];
}

export interface TreeOptions {
  /** Completions shorter than this may be taken in the harness's spelling; 0: none. */
  readonly realignBelow: number;
}

/** In order of arrival; each node stands behind its parent. */
export function tokenTree(calls: readonly TokenCall[], { realignBelow }: TreeOptions): readonly TokenNode[] {
  const nodes: TokenNode[] = [];
  for (const item of calls) {
    const exact = findExact(item.tokens.promptIds, nodes);
    const near = realignBelow === 0 ? null : findNear(item, nodes, exact === null ? 0 : lengthOf(exact), realignBelow);
    const parent = near ?? exact;
    const node: TokenNode = { ...item, parent, exact: near === null, children: [] };
    parent?.children.push(node);
    nodes.push(node);
  }
  return nodes;
}

/** The longest sequence that the prompt begins with; the latest of equals. */
function findExact(prompt: readonly number[], nodes: readonly TokenNode[]): TokenNode | null {
  let best: TokenNode | null = null;
  for (let at = nodes.length - 1; at >= 0; at--) {
    const node = nodes[at] as TokenNode;
    if (lengthOf(node) > (best === null ? 0 : lengthOf(best)) && isPrefix(node, prompt)) best = node;
  }
  return best;
}

/** The call that this one goes on from in words, when its tokens differ only where its short completion stood, and agree for longer than the exact parent's. */
function findNear({ continues, tokens: { promptIds } }: TokenCall, nodes: readonly TokenNode[], exactLength: number, realignBelow: number): TokenNode | null {
  const node = continues === null ? undefined : nodes.findLast(({ call }) => call.number === continues);
  if (node === undefined) return null;
  const { promptIds: asked, completionIds } = node.tokens;
  return completionIds.length < realignBelow && asked.length >= exactLength && asked.length < promptIds.length && !isPrefix(node, promptIds) && startsWith(promptIds, asked, 0) ? node : null;
}

function lengthOf({ tokens }: TokenNode): number {
  return tokens.promptIds.length + tokens.completionIds.length;
}

function isPrefix({ tokens: { promptIds, completionIds } }: TokenNode, prompt: readonly number[]): boolean {
  return startsWith(prompt, completionIds, promptIds.length) && startsWith(prompt, promptIds, 0);
}

/** From the end, where sequences that differ at all mostly differ. */
function startsWith(sequence: readonly number[], part: readonly number[], offset: number): boolean {
  if (sequence.length < offset + part.length) return false;
  for (let at = part.length - 1; at >= 0; at--) if (sequence[offset + at] !== part[at]) return false;
  return true;
}

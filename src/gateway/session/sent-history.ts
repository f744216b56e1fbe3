/** The token history of one session, for upstreams that extend recorded tokens: after which messages does the engine's own record end? */
import type { ConversationFacts, PromptReference } from "../call.ts";
import type { Answer, Message, ToolDefinition } from "../conversation.ts";
import { answerKey, chainKeys, nextKey, toolsKey, type MessageKey } from "../trace/message-key.ts";
import type { CallTokens, TokenHistory } from "../upstreams/upstream.ts";
import { TokenLedger } from "./token-ledger.ts";

export class SentHistory implements TokenHistory {
  readonly #ledger = new TokenLedger();
  /** The call whose request and answer are the messages up to a chained key. */
  readonly #calls = new Map<MessageKey, number>();

  /** Remembers a complete call. */
  add(call: number, { tools, messages }: ConversationFacts, answer: Answer, tokens: CallTokens): PromptReference | null {
    let before = tools;
    for (const key of messages) before = nextKey(before, key);
    this.#calls.set(nextKey(before, answerKey(answer)), call);
    return this.#ledger.add(call, tokens);
  }

  longestPrefix(messages: readonly Message[], tools: readonly ToolDefinition[]): { readonly messages: number; readonly ids: readonly number[] } | null {
    if (this.#calls.size === 0) return null;
    const chain = chainKeys(messages, toolsKey(tools));
    for (let at = chain.length - 1; at >= 0; at--) {
      const call = messages[at]?.role === "assistant" ? this.#calls.get(chain[at] ?? "") : undefined;
      if (call !== undefined) return { messages: at + 1, ids: this.#ledger.ids(call) };
    }
    return null;
  }
}

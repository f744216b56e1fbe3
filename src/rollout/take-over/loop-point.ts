/** From what a dead controller recorded of a loop back to what another one goes on with, in the living machine. */
import type { Call } from "../../gateway/call.ts";
import { messageKey } from "../../gateway/trace/message-key.ts";
import type { ResumePoint } from "../../harness/continuity.ts";
import { HandoverLost } from "../../harness/handover.ts";
import type { LastTurn } from "../checkpoint/history.ts";

/** Rejects `HandoverLost` for records that do not go together. */
export function loopPoint(turn: LastTurn | null, calls: readonly Call[]): ResumePoint {
  if (turn === null) throw new HandoverLost("its history has no turn to go on from");
  const { state, messages, ahead, shell, begun, acting } = turn;
  const keys = messages.map(messageKey).join();
  // No two calls of a loop are answered on the same messages: its history grows, or is made another one.
  const answered = calls.findLast(({ status, conversation }) => status === "complete" && conversation.messages.join() === keys) ?? null;
  if (answered === null && (ahead.length > 0 || acting)) throw new HandoverLost("the answer that it was carrying out is not recorded");
  return { state, messages, answered, begun: new Set(begun), ahead, shell };
}

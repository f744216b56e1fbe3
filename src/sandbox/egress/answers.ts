/** What the proxy tells a client itself, in words that say what to do. The status line has the reason too: many clients show nothing else of a tunnel that failed. */
import { STATUS_CODES } from "node:http";
import type { Duplex } from "node:stream";
import { LIMITS } from "../../core/limits.ts";

export interface Answer {
  readonly status: number;
  /** One line. */
  readonly reason: string;
  readonly hint?: string;
}

const MOST_REASON = 400;

/** `reason` has what came from the machine in it: nothing of it may end the line. */
export function statusLine({ status, reason }: Answer): string {
  const plain = reason.replace(/[^\x20-\x7e]/g, "?").slice(0, MOST_REASON);
  return plain === "" ? (STATUS_CODES[status] ?? "Refused") : plain;
}

export function answerBody(answer: Answer): string {
  return `${statusLine(answer)}\n${answer.hint === undefined ? "" : `${answer.hint}\n`}`;
}

/** As raw bytes, for connections that no HTTP server holds any more. */
function rawAnswer(answer: Answer): string {
  const body = answerBody(answer);
  return `HTTP/1.1 ${answer.status} ${statusLine(answer)}\r\ncontent-type: text/plain\r\ncontent-length: ${Buffer.byteLength(body)}\r\nconnection: close\r\nx-manyworlds-egress: refused\r\n\r\n${body}`;
}

/** Says it, and lets go of a client that does not: one that is told no has no reason to keep the connection. */
export function lastWords(client: Duplex, answer: Answer): void {
  client.end(rawAnswer(answer));
  client.resume();
  setTimeout(() => client.destroy(), LIMITS.egressLastWordsMs).unref();
}

export const HOW_TO_ALLOW =
  'This sandbox reaches the outside over HTTP and HTTPS only, and only the hosts of its list. To allow one: --allow HOST with mw sandbox or mw run, "allow" in the API, or allowed_hosts in the task ([agent], [verifier] or [environment]).';

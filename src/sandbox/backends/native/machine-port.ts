/** A connection to a port inside a machine, as a stream: one process of the file helper, whose frames carry its bytes. */
import { Duplex } from "node:stream";
import { MwError } from "../../../core/errors.ts";
import type { NativeExec } from "./exec.ts";
import { FILE_TAG, FILES } from "./files-protocol.ts";
import { FilesSession } from "./files-session.ts";

/** Bytes of one frame into the machine. */
const PIECE_BYTES = 64 * 1024;

/** Rejects `conflict` when nothing listens there. */
export async function openPort(helper: NativeExec, port: number): Promise<Duplex> {
  const session = new FilesSession(helper);
  const frames = session.frames();
  try {
    await session.send(FILES.connect, [[FILE_TAG.max, port]]);
    const { value, done } = await frames.next();
    if (done === true || value.type !== FILES.event) throw session.cutShort();
  } catch (error) {
    await session.abandon();
    throw error instanceof MwError && error.facts["errno"] === "ECONNREFUSED" ? new MwError("conflict", `nothing listens on port ${port} in the sandbox`, { cause: error }) : error;
  }
  const stream = new Duplex({
    allowHalfOpen: true,
    read() {
      // One reader at a time: it is asked again only when what it pushed was taken.
      frames.next().then(
        ({ value, done }) => {
          if (done === true || value.type !== FILES.data) stream.push(null);
          else stream.push(value.bytes(FILE_TAG.data));
        },
        (error: unknown) => stream.destroy(error instanceof Error ? error : new Error(String(error))),
      );
    },
    write(chunk: Buffer, _encoding, done) {
      sendPieces(session, chunk).then(() => done(), done);
    },
    final(done) {
      helper.closeStdin().then(() => done(), done);
    },
    destroy(error, done) {
      session.abandon().then(() => done(error), () => done(error));
    },
  });
  return stream;
}

async function sendPieces(session: FilesSession, bytes: Buffer): Promise<void> {
  for (let at = 0; at < bytes.length; at += PIECE_BYTES) await session.send(FILES.data, [[FILE_TAG.data, bytes.subarray(at, at + PIECE_BYTES)]]);
}

/** `mw show --web` and `mw run --ui`: the dashboard on this host, for as long as the command lasts. */
import type { CallBoard } from "../gateway/call-board.ts";
import { openReader, type Reader } from "../server/index.ts";
import type { AppContext } from "./context.ts";
import { note, printLine } from "./output.ts";
import { VERSION } from "./version.ts";

/** Serves the page until an interrupt, once `check` found what is to be shown. */
export async function showPage(context: AppContext, home: string, path: string, check: () => Promise<void>): Promise<void> {
  await check();
  const reader = await startPage(context, home);
  try {
    const interrupted = new Promise<void>((resolve) => {
      const stop = context.onInterrupt(() => {
        stop();
        resolve();
      });
    });
    printLine(context, linkTo(reader, path));
    note(context, "Ctrl-C ends it");
    await interrupted;
  } finally {
    await reader.close();
  }
}

/** `board`: shows the model calls of rollouts of this process. */
export function startPage(context: AppContext, home: string, board?: CallBoard): Promise<Reader> {
  return openReader({ home, board, version: VERSION, runtime: context.runtime, env: context.env, log: (line) => note(context, line) });
}

/** The key stands behind the `#`, which no browser sends and the page takes out of the address. */
export function linkTo({ url, fragment }: Reader, path: string): string {
  return `${url}/ui${path}${fragment}`;
}

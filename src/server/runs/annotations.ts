/**
 * Marks and notes that people leave on a run, its groups and its rollouts: `annotations.jsonl` in the run's directory, one document a line, the last on a target holds. Several
 * servers may write to it, so a line goes out in one write to a file that is opened for appending.
 */
import { open, readFile, stat } from "node:fs/promises";
import { join } from "node:path";
import { messageOf, MwError } from "../../core/errors.ts";
import { LIMITS } from "../../core/limits.ts";
import { runDirectory } from "../../store/run-directory.ts";
import { markSchema, type MarkView } from "./contract/marks.ts";
import type { LiveRun } from "./live-run.ts";

export class Annotations {
  readonly #read = new WeakMap<LiveRun, { readonly size: number; readonly marks: ReadonlyMap<string, MarkView> }>();

  async of(run: LiveRun): Promise<ReadonlyMap<string, MarkView>> {
    const path = pathOf(run);
    const size = await stat(path).then(
      (found) => found.size,
      () => 0,
    );
    const known = this.#read.get(run);
    if (known?.size === size) return known.marks;
    const marks = new Map<string, MarkView>();
    if (size > 0) for (const line of (await readFile(path, "utf8")).split("\n")) take(marks, line);
    this.#read.set(run, { size, marks });
    return marks;
  }

  /** Durable when it resolves. */
  async put(run: LiveRun, mark: MarkView): Promise<void> {
    const path = pathOf(run);
    const line = `${JSON.stringify(mark)}\n`;
    try {
      const file = await open(path, "a", 0o644);
      try {
        const { size } = await file.stat();
        if (size + line.length > LIMITS.annotationsBytes) throw new MwError("limit_exceeded", `${path} holds ${size} bytes of marks and notes, and takes no more than ${LIMITS.annotationsBytes}`, { fix: "move the file away to begin anew" });
        // What a writer left half-written must not swallow this line.
        await file.appendFile(size > 0 && !(await endsLine(path, size)) ? `\n${line}` : line);
        await file.datasync();
      } finally {
        await file.close();
      }
    } catch (error) {
      if (error instanceof MwError) throw error;
      throw new MwError("environment", `cannot write ${path}: ${messageOf(error)}`, { fix: "make the run's directory writable for whoever serves the page", cause: error });
    }
  }
}

const pathOf = (run: LiveRun): string => join(runDirectory(run.home, run.run), "annotations.jsonl");

async function endsLine(path: string, size: number): Promise<boolean> {
  const file = await open(path, "r");
  try {
    const last = Buffer.alloc(1);
    await file.read(last, 0, 1, size - 1);
    return last[0] === 10;
  } finally {
    await file.close();
  }
}

function take(marks: Map<string, MarkView>, line: string): void {
  try {
    const mark = markSchema.parse(JSON.parse(line));
    if (mark.mark === null && mark.note === "") marks.delete(mark.target);
    else marks.set(mark.target, mark);
  } catch {
    // A torn line is no mark.
  }
}

/** Lines that differ between two texts, with some of what is around them. */
export interface DiffLine {
  readonly kind: "same" | "plus" | "minus" | "gap";
  readonly text: string;
  readonly before: number | null;
  readonly after: number | null;
}

const AROUND = 3;
/** Above this much work the middle is shown as replaced. */
const CELLS = 4_000_000;

export function diffLines(before: string, after: string): readonly DiffLine[] {
  const a = linesOf(before);
  const b = linesOf(after);
  let head = 0;
  while (head < a.length && head < b.length && a[head] === b[head]) head++;
  let tail = 0;
  while (tail < a.length - head && tail < b.length - head && a[a.length - 1 - tail] === b[b.length - 1 - tail]) tail++;
  const middle = common(a.slice(head, a.length - tail), b.slice(head, b.length - tail)).map(([i, j]) => [head + i, head + j] as const);
  const ends = (length: number): readonly number[] => [...Array(length).keys()];
  const kept = [...ends(head).map((at) => [at, at] as const), ...middle, ...ends(tail).map((at) => [a.length - tail + at, b.length - tail + at] as const)];
  const lines: DiffLine[] = [];
  let [x, y] = [0, 0];
  // What stands between two lines that were kept was taken out, and then put in; the last pair is the end of both.
  for (const [i, j] of [...kept, [a.length, b.length] as const]) {
    lines.push(...a.slice(x, i).map((text, at): DiffLine => ({ kind: "minus", text, before: x + at + 1, after: null })));
    lines.push(...b.slice(y, j).map((text, at): DiffLine => ({ kind: "plus", text, before: null, after: y + at + 1 })));
    if (i < a.length) lines.push({ kind: "same", text: a[i] ?? "", before: i + 1, after: j + 1 });
    [x, y] = [i + 1, j + 1];
  }
  return folded(lines);
}

function linesOf(text: string): readonly string[] {
  const lines = text.split("\n");
  if (lines.at(-1) === "") lines.pop();
  return lines;
}

/** Places of a longest common subsequence. */
function common(a: readonly string[], b: readonly string[]): readonly (readonly [number, number])[] {
  if (a.length * b.length > CELLS || a.length === 0 || b.length === 0) return [];
  const width = b.length + 1;
  const lengths = new Uint32Array((a.length + 1) * width);
  for (let i = a.length - 1; i >= 0; i--) {
    for (let j = b.length - 1; j >= 0; j--) {
      lengths[i * width + j] = a[i] === b[j] ? (lengths[(i + 1) * width + j + 1] ?? 0) + 1 : Math.max(lengths[(i + 1) * width + j] ?? 0, lengths[i * width + j + 1] ?? 0);
    }
  }
  const pairs: (readonly [number, number])[] = [];
  for (let i = 0, j = 0; i < a.length && j < b.length; ) {
    if (a[i] === b[j]) pairs.push([i++, j++]);
    else if ((lengths[(i + 1) * width + j] ?? 0) >= (lengths[i * width + j + 1] ?? 0)) i++;
    else j++;
  }
  return pairs;
}

/** Without the stretches that did not change. */
function folded(lines: readonly DiffLine[]): readonly DiffLine[] {
  const near = new Uint8Array(lines.length);
  for (const [at, { kind }] of lines.entries()) if (kind !== "same") near.fill(1, Math.max(0, at - AROUND), at + AROUND + 1);
  const shown: DiffLine[] = [];
  let hidden = 0;
  const gap = (): void => {
    if (hidden > 0) shown.push({ kind: "gap", text: `${hidden} ${hidden === 1 ? "line" : "lines"} alike`, before: null, after: null });
    hidden = 0;
  };
  for (const [at, line] of lines.entries()) {
    if (near[at] === 1) {
      gap();
      shown.push(line);
    } else hidden++;
  }
  gap();
  return shown;
}

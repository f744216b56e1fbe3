/**
 * Text that agents wrote, made safe to look at. React writes it as text, so no markup of it is ever markup; what is left are characters that move, hide or reorder what stands around
 * them. Those are shown by name. Only the terminal interprets control sequences, and is spared what would reorder its lines.
 */

// Control sequence introducers, operating system commands and the short escapes.
// oxlint-disable-next-line no-control-regex -- control characters are what this looks for
const SEQUENCES = /\u001b(?:\[[0-?]*[ -/]*[@-~]|\][^\u0007\u001b]*(?:\u0007|\u001b\\)?|[PX^_][^\u001b]*(?:\u001b\\)?|[ -/]*[0-~])|\u009b[0-?]*[ -/]*[@-~]/g;
// oxlint-disable-next-line no-control-regex -- see above
const INVISIBLE = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ufff9-\ufffb]|[\u{e0000}-\u{e007f}]/gu;

export interface Shown {
  readonly text: string;
  /** Control sequences that were left out. */
  readonly sequences: number;
}

export function visible(text: string): Shown {
  let sequences = 0;
  const plain = text.replaceAll("\r\n", "\n").replace(SEQUENCES, () => {
    sequences++;
    return "";
  });
  return { text: plain.replace(INVISIBLE, nameOf), sequences };
}

/** For the terminal: as it is, but for characters that reorder others. */
export function inOrder(text: string): string {
  return text.replace(/[\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]/g, nameOf);
}

function nameOf(char: string): string {
  const code = char.codePointAt(0) ?? 0;
  return `⟨U+${code.toString(16).toUpperCase().padStart(4, "0")}⟩`;
}

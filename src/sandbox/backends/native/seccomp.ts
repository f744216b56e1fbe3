/**
 * Compiles `seccomp.json` to a classic BPF program for the kernel's system call filter.
 *
 * Only the native ABI is served: a call made through another one (32-bit x86, x32, 32-bit ARM) answers ENOSYS, because its numbers and argument layouts would
 * pass the rules by. Call numbers are found by binary search over ranges of equal treatment: the kernel runs the filter once for every number when it is
 * installed (to cache what is always allowed), which makes a linear list a visible part of a machine's start.
 *
 * Rules compare the low 32 bits of an argument: every argument judged here is an `int` or has its flags there, and the kernel ignores the rest too.
 */
import { readFileSync } from "node:fs";
import { constants } from "node:os";
import { z } from "zod";

const Condition = z.strictObject({ arg: z.int().min(0).max(5), mask: z.string().optional(), in: z.array(z.string()).min(1) });
const Case = z.strictObject({ when: z.array(Condition).min(1), action: z.string() });
const Entry = z.strictObject({ calls: z.array(z.string()).min(1), reason: z.string().min(10), cases: z.array(Case).optional(), otherwise: z.string().optional() });
const Profile = z.strictObject({
  default: z.strictObject({ action: z.string(), reason: z.string() }),
  groups: z.array(z.strictObject({ name: z.string(), action: z.string(), entries: z.array(Entry).min(1) })),
});
export type SeccompProfile = z.infer<typeof Profile>;

export interface SeccompTarget {
  readonly arch: "x64" | "arm64";
  /** Call numbers by name on that architecture. */
  readonly syscalls: Readonly<Record<string, number>>;
}

/** The profile that ships with the product. */
export function loadSeccompProfile(): SeccompProfile {
  return Profile.parse(JSON.parse(readFileSync(new URL("./seccomp.json", import.meta.url), "utf8")));
}

/** An array of `struct sock_filter`, little-endian, 8 bytes each. Names that the architecture does not have are left out: they are unknown there. */
export function compileSeccomp(profile: SeccompProfile, target: SeccompTarget): Uint8Array {
  const assembler = new Assembler();
  const other = returnOf("ENOSYS");
  assembler.load(OFFSET_ARCH);
  assembler.ifEqual(AUDIT_ARCH[target.arch], [], [ret(other)]);
  assembler.load(OFFSET_NR);
  const ranges = rangesOf(treatments(profile, target), returnOf(profile.default.action));
  assembler.append(searchTree(ranges));
  if (assembler.code.length > BPF_MAXINSNS) throw new Error(`The system call filter has ${assembler.code.length} instructions, more than the kernel takes (${BPF_MAXINSNS}).`);
  return encode(assembler.code);
}

/** What happens to one call: a fixed answer, or code that looks at the arguments. */
type Treatment = { readonly kind: "return"; readonly value: number } | { readonly kind: "code"; readonly code: readonly Instruction[] };

interface Instruction {
  readonly code: number;
  readonly jt: number;
  readonly jf: number;
  readonly k: number;
}

interface Range {
  readonly from: number;
  readonly treatment: Treatment;
}

const BPF_MAXINSNS = 4096;
const OFFSET_NR = 0;
const OFFSET_ARCH = 4;
const OFFSET_ARGS = 16;
const AUDIT_ARCH = { x64: 0xc000003e, arm64: 0xc00000b7 } as const;
const RET_ALLOW = 0x7fff0000;
const RET_ERRNO = 0x00050000;
const LD_W_ABS = 0x20;
const AND_K = 0x54;
const JA = 0x05;
const JEQ_K = 0x15;
const JGE_K = 0x35;
const RET_K = 0x06;

const ret = (value: number): Instruction => ({ code: RET_K, jt: 0, jf: 0, k: value });

function returnOf(action: string): number {
  if (action === "allow") return RET_ALLOW;
  const number = (constants.errno as Readonly<Record<string, number | undefined>>)[action];
  if (number === undefined) throw new Error(`The seccomp profile names the action "${action}"; it is neither "allow" nor an errno name.`);
  return RET_ERRNO | number;
}

class Assembler {
  readonly code: Instruction[] = [];

  load(offset: number): void {
    this.code.push({ code: LD_W_ABS, jt: 0, jf: 0, k: offset });
  }

  /** Runs `then` (which must end in a return unless empty) when the accumulator equals `k`, else `otherwise`. */
  ifEqual(k: number, then: readonly Instruction[], otherwise: readonly Instruction[]): void {
    if (otherwise.length > 255) throw new Error("A branch of the system call filter is too long.");
    this.code.push({ code: JEQ_K, jt: otherwise.length, jf: 0, k }, ...otherwise, ...then);
  }

  append(code: readonly Instruction[]): void {
    this.code.push(...code);
  }
}

function treatments(profile: SeccompProfile, target: SeccompTarget): ReadonlyMap<number, Treatment> {
  const result = new Map<number, Treatment>();
  const seen = new Set<string>();
  for (const group of profile.groups) {
    for (const entry of group.entries) {
      const treatment = treatmentOf(entry, group.action);
      for (const name of entry.calls) {
        if (seen.has(name)) throw new Error(`The seccomp profile names ${name} twice.`);
        seen.add(name);
        const number = target.syscalls[name];
        if (number !== undefined) result.set(number, treatment);
      }
    }
  }
  return result;
}

function treatmentOf(entry: z.infer<typeof Entry>, groupAction: string): Treatment {
  const otherwise = ret(returnOf(entry.otherwise ?? groupAction));
  if (entry.cases === undefined) return { kind: "return", value: otherwise.k };
  // Built from the last case to the first: each falls through to what follows it.
  let code: readonly Instruction[] = [otherwise];
  for (const { when, action } of entry.cases.toReversed()) code = caseCode(when, ret(returnOf(action)), code);
  return { kind: "code", code };
}

/** `matched` when all conditions hold, else runs `rest`. Layout: condition blocks, the match, the rest; a failing condition jumps to the rest. */
function caseCode(when: readonly z.infer<typeof Condition>[], matched: Instruction, rest: readonly Instruction[]): readonly Instruction[] {
  let after: Instruction[] = [matched];
  for (const condition of when.toReversed()) {
    const values = condition.in.map(parseWord);
    const block: Instruction[] = [{ code: LD_W_ABS, jt: 0, jf: 0, k: OFFSET_ARGS + 8 * condition.arg }];
    if (condition.mask !== undefined) block.push({ code: AND_K, jt: 0, jf: 0, k: parseWord(condition.mask) });
    values.forEach((k, index) => {
      const last = index === values.length - 1;
      block.push({ code: JEQ_K, jt: values.length - 1 - index, jf: last ? after.length : 0, k });
    });
    after = block.concat(after);
  }
  if (after.length > 255) throw new Error("A case of the system call filter is too long.");
  return [...after, ...rest];
}

function parseWord(text: string): number {
  const value = Number(text);
  if (!Number.isInteger(value) || value < 0 || value > 0xffffffff) throw new Error(`The seccomp profile has the value "${text}"; it must be a 32-bit number.`);
  return value;
}

function rangesOf(byNumber: ReadonlyMap<number, Treatment>, fallback: number): readonly Range[] {
  const unknown: Treatment = { kind: "return", value: fallback };
  const ranges: Range[] = [];
  const end = Math.max(...byNumber.keys()) + 1;
  for (let number = 0; number <= end; number++) {
    const treatment = byNumber.get(number) ?? unknown;
    const previous = ranges.at(-1)?.treatment;
    if (previous !== undefined && same(previous, treatment)) continue;
    ranges.push({ from: number, treatment });
  }
  // The last range is open-ended and unknown; numbers with the x32 bit (0x40000000) are in it.
  return ranges;
}

function same(a: Treatment, b: Treatment): boolean {
  return a === b || (a.kind === "return" && b.kind === "return" && a.value === b.value);
}

function searchTree(ranges: readonly Range[]): readonly Instruction[] {
  const [only] = ranges;
  if (only === undefined) throw new Error("The system call filter has no ranges.");
  if (ranges.length === 1) return only.treatment.kind === "return" ? [ret(only.treatment.value)] : only.treatment.code;
  const middle = Math.floor(ranges.length / 2);
  const pivot = ranges[middle];
  if (pivot === undefined) throw new Error("The middle of a range list is inside it.");
  const below = searchTree(ranges.slice(0, middle));
  const above = searchTree(ranges.slice(middle));
  // Conditional jumps reach 255 instructions, the unconditional one any distance.
  if (below.length <= 255) return [{ code: JGE_K, jt: below.length, jf: 0, k: pivot.from }, ...below, ...above];
  return [{ code: JGE_K, jt: 0, jf: 1, k: pivot.from }, { code: JA, jt: 0, jf: 0, k: below.length }, ...below, ...above];
}

function encode(code: readonly Instruction[]): Uint8Array {
  const bytes = new Uint8Array(code.length * 8);
  const view = new DataView(bytes.buffer);
  code.forEach(({ code: opcode, jt, jf, k }, index) => {
    view.setUint16(index * 8, opcode, true);
    view.setUint8(index * 8 + 2, jt);
    view.setUint8(index * 8 + 3, jf);
    view.setUint32(index * 8 + 4, k, true);
  });
  return bytes;
}

/**
 * The embedded policy's form: a decoder-only transformer with RMS norms before attention and MLP, learned positions, and two sources of the next word: a head, and a pointer that adds
 * to the words that stand where it looks (See et al., arXiv:1704.04368), since most of what a command says stands in the instruction. Where it looks depends on places and tokens alone. It reads every byte, but says only its own
 * vocabulary: the ids from `spokenFrom` on, `spoken` of them.
 *
 * Two programs compute it and are held against each other by tests: `decoder.ts` one token at a time, for sampling, and `../learn/forward.ts` whole batches with gradients.
 */
import { seededRandom } from "../../core/runtime.ts";

export interface ModelShape {
  readonly layers: number;
  readonly width: number;
  /** Divides `width`. */
  readonly heads: number;
  /** Longest sequence, prompt and answer together. */
  readonly context: number;
  readonly vocabulary: number;
  readonly spokenFrom: number;
  readonly spoken: number;
}

/** By name, in the order of `parameterShapes`. 32-bit in use; 64-bit where tests want exact differences. */
export type Parameters<Numbers extends Float32Array | Float64Array = Float32Array> = ReadonlyMap<string, Numbers>;

export const NORM_EPSILON = 1e-5;
/** What the pointer weighs before it has learnt when to point. */
export const COPY_GAIN = 8;
const MLP_FACTOR = 4;

/** Rows and columns of every parameter; a matrix takes a row vector from the left. */
export function parameterShapes({ layers, width, context, vocabulary, spoken }: ModelShape): ReadonlyMap<string, readonly number[]> {
  const shapes = new Map<string, readonly number[]>([
    ["embedding", [vocabulary, width]],
    ["position", [context, width]],
  ]);
  for (let layer = 0; layer < layers; layer++) {
    shapes.set(`layer.${layer}.attention.norm`, [width]);
    for (const part of ["query", "key", "value", "output"]) shapes.set(`layer.${layer}.attention.${part}`, [width, width]);
    shapes.set(`layer.${layer}.mlp.norm`, [width]);
    shapes.set(`layer.${layer}.mlp.up`, [width, width * MLP_FACTOR]);
    shapes.set(`layer.${layer}.mlp.down`, [width * MLP_FACTOR, width]);
  }
  return shapes
    .set("norm", [width])
    .set("head", [width, spoken])
    .set("copy.norm", [width])
    .set("copy.query", [width, width])
    .set("copy.key", [width, width])
    .set("copy.gate", [width, 1]);
}

export function sizeOf(shape: readonly number[]): number {
  return shape.reduce((product, side) => product * side, 1);
}

/**
 * The same seed gives the same numbers, on every machine. The head begins near 0, so that an untrained policy says everything about equally often. Attention begins nearly even, so that
 * nothing of the instruction is overlooked, and weighs more than what was read last, so that what is learnt first depends on what was told: else all kinds of task get one answer, which
 * is then the only one that is tried.
 */
export function initialParameters(shape: ModelShape, seed: string): Parameters {
  const random = seededRandom(`${seed}/parameters`);
  // Box and Muller's transform; 1 - u is never 0.
  const normal = (): number => Math.sqrt(-2 * Math.log(1 - random())) * Math.cos(2 * Math.PI * random());
  return new Map(
    [...parameterShapes(shape)].map(([name, sides]) => {
      const values = new Float32Array(sizeOf(sides));
      const spread = spreadOf(name, sides);
      return [name, spread === null ? values.fill(1) : values.map(() => spread * normal())];
    }),
  );
}

/** Standard deviation; null for gains, which are 1. */
function spreadOf(name: string, [rows = 1, ...columns]: readonly number[]): number | null {
  if (columns.length === 0) return null;
  const part = name.replace(/^layer\.\d+\./, "");
  const fixed: Readonly<Record<string, number>> = { embedding: 1, position: 1, head: 0.02, "copy.gate": 0 };
  const factors: Readonly<Record<string, number>> = { "attention.query": 0.2, "attention.key": 0.2, "attention.output": 4, "mlp.down": 2, "copy.query": 0.3, "copy.key": 0.3 };
  return fixed[part] ?? (factors[part] ?? 1) / Math.sqrt(rows);
}

/** The array of a name that the shape has. */
export function parameter<Numbers extends Float32Array | Float64Array>(parameters: Parameters<Numbers>, name: string): Numbers {
  const values = parameters.get(name);
  if (values === undefined) throw new Error(`the model has no parameter ${name}`);
  return values;
}

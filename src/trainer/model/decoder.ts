/**
 * The policy's forward pass one token at a time, in plain typed arrays: keys and values of what came before are kept, so that a token costs two small matrix products a layer.
 * Sums are 64-bit whatever the parameters are.
 */
import { COPY_GAIN, NORM_EPSILON, parameter, type ModelShape, type Parameters } from "./shape.ts";

type Numbers = Float32Array | Float64Array;

interface Layer {
  readonly attentionNorm: Numbers;
  readonly query: Numbers;
  readonly key: Numbers;
  readonly value: Numbers;
  readonly output: Numbers;
  readonly mlpNorm: Numbers;
  readonly up: Numbers;
  readonly down: Numbers;
}

/** One set of weights, ready to decode with. */
export class Model {
  readonly shape: ModelShape;
  readonly embedding: Numbers;
  readonly position: Numbers;
  readonly layers: readonly Layer[];
  readonly norm: Numbers;
  readonly head: Numbers;
  readonly copyNorm: Numbers;
  readonly copyQuery: Numbers;
  readonly copyKey: Numbers;
  readonly copyGate: Numbers;

  constructor(shape: ModelShape, parameters: Parameters<Numbers>) {
    this.shape = shape;
    this.embedding = parameter(parameters, "embedding");
    this.position = parameter(parameters, "position");
    this.norm = parameter(parameters, "norm");
    this.head = parameter(parameters, "head");
    this.copyNorm = parameter(parameters, "copy.norm");
    this.copyQuery = parameter(parameters, "copy.query");
    this.copyKey = parameter(parameters, "copy.key");
    this.copyGate = parameter(parameters, "copy.gate");
    this.layers = Array.from({ length: shape.layers }, (_, index) => {
      const of = (name: string): Numbers => parameter(parameters, `layer.${index}.${name}`);
      return {
        attentionNorm: of("attention.norm"),
        query: of("attention.query"),
        key: of("attention.key"),
        value: of("attention.value"),
        output: of("attention.output"),
        mlpNorm: of("mlp.norm"),
        up: of("mlp.up"),
        down: of("mlp.down"),
      };
    });
  }
}

/** One sequence under one set of weights. */
export class Decoder {
  readonly #model: Model;
  /** By layer, `context` rows of `width`. */
  readonly #keys: readonly Float64Array[];
  readonly #values: readonly Float64Array[];
  readonly #stream: Float64Array;
  readonly #normed: Float64Array;
  readonly #query: Float64Array;
  readonly #mixed: Float64Array;
  readonly #hidden: Float64Array;
  readonly #delta: Float64Array;
  readonly #scores: Float64Array;
  readonly #copyKeys: Float64Array;
  /** Of the last token read. */
  readonly #copyQuery: Float64Array;
  readonly #ids: number[] = [];
  #length = 0;

  constructor(model: Model) {
    this.#model = model;
    const { layers, width, context } = model.shape;
    const cache = (): Float64Array[] => Array.from({ length: layers }, () => new Float64Array(context * width));
    this.#keys = cache();
    this.#values = cache();
    this.#stream = new Float64Array(width);
    this.#normed = new Float64Array(width);
    this.#query = new Float64Array(width);
    this.#mixed = new Float64Array(width);
    this.#delta = new Float64Array(width);
    this.#hidden = new Float64Array(width * 4);
    this.#scores = new Float64Array(context);
    this.#copyQuery = new Float64Array(width);
    this.#copyKeys = new Float64Array(context * width);
  }

  /** Tokens read so far. */
  get length(): number {
    return this.#length;
  }

  /** Reads one token. Throws for an id outside of the vocabulary and beyond the context. */
  read(id: number): void {
    const { shape, embedding, position, layers } = this.#model;
    const { width, context, vocabulary } = shape;
    const at = this.#length;
    if (at >= context) throw new RangeError(`the context of ${context} tokens is full`);
    if (!Number.isInteger(id) || id < 0 || id >= vocabulary) throw new RangeError(`there is no token ${id} in a vocabulary of ${vocabulary}`);
    for (let i = 0; i < width; i++) this.#stream[i] = (embedding[id * width + i] ?? 0) + (position[at * width + i] ?? 0);
    normalise(this.#stream, this.#model.copyNorm, this.#normed);
    multiply(this.#normed, this.#model.copyKey, this.#copyKeys.subarray(at * width, (at + 1) * width));
    multiply(this.#normed, this.#model.copyQuery, this.#copyQuery);
    for (const [index, layer] of layers.entries()) {
      normalise(this.#stream, layer.attentionNorm, this.#normed);
      this.#attend(layer, this.#keys[index] ?? new Float64Array(0), this.#values[index] ?? new Float64Array(0), at);
      normalise(this.#stream, layer.mlpNorm, this.#normed);
      multiply(this.#normed, layer.up, this.#hidden);
      for (let i = 0; i < this.#hidden.length; i++) this.#hidden[i] = Math.max(0, this.#hidden[i] ?? 0);
      multiply(this.#hidden, layer.down, this.#delta);
      add(this.#stream, this.#delta);
    }
    this.#ids.push(id);
    this.#length = at + 1;
  }

  /** Scores of the spoken vocabulary, in its order, for the token after the last one read. */
  logits(): Float64Array {
    const { shape, norm, head } = this.#model;
    normalise(this.#stream, norm, this.#normed);
    const logits = new Float64Array(shape.spoken);
    multiply(this.#normed, head, logits);
    this.#copy(logits);
    return logits;
  }

  /** Adds what the pointer says: the words that stand where it looks. */
  #copy(logits: Float64Array): void {
    const { shape, copyGate } = this.#model;
    const { width, spokenFrom, spoken } = shape;
    let highest = Number.NEGATIVE_INFINITY;
    for (let past = 0; past < this.#length; past++) {
      let score = 0;
      for (let i = 0; i < width; i++) score += (this.#copyQuery[i] ?? 0) * (this.#copyKeys[past * width + i] ?? 0);
      this.#scores[past] = score /= Math.sqrt(width);
      if (score > highest) highest = score;
    }
    let total = 0;
    for (let past = 0; past < this.#length; past++) total += this.#scores[past] = Math.exp((this.#scores[past] ?? 0) - highest);
    let gate = COPY_GAIN;
    for (let i = 0; i < width; i++) gate += (this.#normed[i] ?? 0) * (copyGate[i] ?? 0);
    for (const [past, id] of this.#ids.entries()) {
      const word = id - spokenFrom;
      if (word >= 0 && word < spoken) logits[word] = (logits[word] ?? 0) + (gate * (this.#scores[past] ?? 0)) / total;
    }
  }

  #attend(layer: Layer, keys: Float64Array, values: Float64Array, at: number): void {
    const { width, heads } = this.#model.shape;
    const size = width / heads;
    multiply(this.#normed, layer.query, this.#query);
    multiply(this.#normed, layer.key, keys.subarray(at * width, (at + 1) * width));
    multiply(this.#normed, layer.value, values.subarray(at * width, (at + 1) * width));
    this.#mixed.fill(0);
    for (let from = 0; from < width; from += size) {
      let highest = Number.NEGATIVE_INFINITY;
      for (let past = 0; past <= at; past++) {
        let score = 0;
        for (let i = from; i < from + size; i++) score += (this.#query[i] ?? 0) * (keys[past * width + i] ?? 0);
        score /= Math.sqrt(size);
        this.#scores[past] = score;
        if (score > highest) highest = score;
      }
      let total = 0;
      for (let past = 0; past <= at; past++) total += this.#scores[past] = Math.exp((this.#scores[past] ?? 0) - highest);
      for (let past = 0; past <= at; past++) {
        const share = (this.#scores[past] ?? 0) / total;
        for (let i = from; i < from + size; i++) this.#mixed[i] = (this.#mixed[i] ?? 0) + share * (values[past * width + i] ?? 0);
      }
    }
    multiply(this.#mixed, layer.output, this.#delta);
    add(this.#stream, this.#delta);
  }
}

/** `out = vector * matrix`. */
function multiply(vector: Float64Array, matrix: Numbers, out: Float64Array): void {
  const columns = out.length;
  out.fill(0);
  for (let row = 0; row < vector.length; row++) {
    const factor = vector[row] ?? 0;
    if (factor === 0) continue;
    const start = row * columns;
    for (let column = 0; column < columns; column++) out[column] = (out[column] ?? 0) + factor * (matrix[start + column] ?? 0);
  }
}

function normalise(vector: Float64Array, gain: Numbers, out: Float64Array): void {
  let squares = 0;
  for (const value of vector) squares += value * value;
  const scale = 1 / Math.sqrt(squares / vector.length + NORM_EPSILON);
  for (let i = 0; i < vector.length; i++) out[i] = (vector[i] ?? 0) * scale * (gain[i] ?? 0);
}

function add(to: Float64Array, what: Float64Array): void {
  for (let i = 0; i < to.length; i++) to[i] = (to[i] ?? 0) + (what[i] ?? 0);
}

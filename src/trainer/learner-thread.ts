/** The learner in a thread of its own: a step takes a second of a processor, in which rollouts and sampling go on. */
import type { ModelShape, Parameters } from "./model/shape.ts";
import type { Batch } from "./learn/batch.ts";
import { loadJax } from "./learn/jax.ts";
import { Learner, type LearnerState, type LearningRules, type StepFacts } from "./learn/learner.ts";
import { serveThread } from "./thread.ts";

export interface LearnerGiven {
  readonly shape: ModelShape;
  readonly rules: LearningRules;
  readonly state: LearnerState;
  readonly reference: Parameters;
}

export interface LearnerAsk {
  readonly batch: Batch;
  /** How many were made before. */
  readonly step: number;
}

export interface LearnerResult {
  readonly facts: StepFacts;
  readonly state: LearnerState;
}

export interface LearnerContract {
  readonly given: LearnerGiven;
  readonly request: LearnerAsk;
  readonly result: LearnerResult;
}

await serveThread<LearnerContract>(async ({ shape, rules, state, reference }) => {
  const learner = new Learner(await loadJax(), shape, rules, state, reference);
  return async ({ batch, step }) => {
    const facts = await learner.step(batch, step);
    return { facts, state: learner.state };
  };
});

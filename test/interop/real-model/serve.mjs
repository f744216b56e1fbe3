// A real small language model on the CPU, sampled by llama.cpp and served as vLLM serves chat completions with token ids. Started with the directory of node-llama-cpp
// and the model's file; prints its address. `POST /score` gives the logprob of each given completion token once more.
import { createServer } from "node:http";
import { createRequire } from "node:module";
import { join } from "node:path";
import { pathToFileURL } from "node:url";

const [directory = "", modelPath = ""] = process.argv.slice(2);
const { getLlama, LlamaLogLevel } = await import(pathToFileURL(createRequire(join(directory, "package.json")).resolve("node-llama-cpp")).href);
const llama = await getLlama({ gpu: false, build: "never", logLevel: LlamaLogLevel.error });
const model = await llama.loadModel({ modelPath });
const context = await model.createContext({ contextSize: 2048, threads: 1 });
const sequence = context.getSequence();
// Probabilities are those after the sampler; without these it would cut the distribution.
const WHOLE = { temperature: 1, topK: 0, topP: 1, minP: 0 };
const END = model.tokenize("<|im_end|>", true).at(-1);
// One sequence: one call at a time.
let last = Promise.resolve();
let calls = 0;
const inTurn = (run) => (last = last.then(run, run));

function render(messages) {
  const turns = messages.map(({ role, content }) => `<|im_start|>${role}\n${typeof content === "string" ? content : content.map((part) => part.text).join("")}<|im_end|>\n`);
  return model.tokenize(`${turns.join("")}<|im_start|>assistant\n`, true);
}

async function* sample(prompt, maxTokens, seed) {
  await sequence.clearHistory();
  let count = 0;
  for await (const { token, confidence } of sequence.evaluateWithMetadata(prompt, { confidence: true }, { ...WHOLE, seed, yieldEogToken: true })) {
    count++;
    yield { id: token, logprob: Math.log(confidence), ended: token === END || model.isEogToken(token), full: count === maxTokens };
    if (token === END || model.isEogToken(token) || count === maxTokens) return;
  }
}

async function score(prompt, completion) {
  await sequence.clearHistory();
  const logprobs = [];
  let input = prompt;
  // In the steps in which it was sampled: a quantised model rounds otherwise when it is given many tokens at a time.
  for (const id of completion) {
    const asked = input.map((token, at) => (at === input.length - 1 ? [token, { generateNext: { probabilities: true, options: WHOLE } }] : token));
    const output = await sequence.controlledEvaluate(asked);
    logprobs.push(Math.log(output[input.length - 1].next.probabilities.get(id)));
    input = [id];
  }
  return logprobs;
}

async function chat(body, response) {
  const prompt = render(body.messages);
  const maxTokens = body.max_tokens ?? 64;
  const head = { id: "chatcmpl-real", object: body.stream ? "chat.completion.chunk" : "chat.completion", created: 1, model: body.model };
  const ids = [];
  const entries = [];
  let said = "";
  let finish = null;
  if (body.stream) {
    response.writeHead(200, { "content-type": "text/event-stream" });
    response.write(`data: ${JSON.stringify({ ...head, prompt_token_ids: prompt, choices: [{ index: 0, delta: { role: "assistant", content: "" }, finish_reason: null }] })}\n\n`);
  }
  for await (const { id, logprob, ended, full } of sample(prompt, maxTokens, body.seed ?? ++calls)) {
    ids.push(id);
    const text = model.detokenize(ids.filter((token) => token !== END), false);
    // Half a character waits.
    const piece = text.endsWith("\uFFFD") ? "" : text.slice(said.length);
    said += piece;
    finish = ended ? "stop" : full ? "length" : null;
    const entry = { token: "", logprob, bytes: null, top_logprobs: [] };
    entries.push(entry);
    if (body.stream) response.write(`data: ${JSON.stringify({ ...head, choices: [{ index: 0, delta: { content: piece }, finish_reason: finish, token_ids: [id], logprobs: { content: [entry] } }] })}\n\n`);
  }
  const usage = { prompt_tokens: prompt.length, completion_tokens: ids.length, total_tokens: prompt.length + ids.length };
  if (body.stream) return response.end(`data: ${JSON.stringify({ ...head, choices: [], usage })}\n\ndata: [DONE]\n\n`);
  const choice = { index: 0, message: { role: "assistant", content: said }, finish_reason: finish, token_ids: ids, logprobs: { content: entries } };
  response.writeHead(200, { "content-type": "application/json" }).end(JSON.stringify({ ...head, prompt_token_ids: prompt, choices: [choice], usage }));
}

const server = createServer(async (request, response) => {
  let text = "";
  for await (const part of request) text += part;
  try {
    if (request.url === "/v1/models") response.writeHead(200).end(JSON.stringify({ data: [{ id: "smollm2", max_model_len: 2048 }] }));
    else if (request.url === "/score") {
      const { prompt, completion } = JSON.parse(text);
      const logprobs = await inTurn(() => score(prompt, completion));
      response.writeHead(200).end(JSON.stringify({ logprobs, text: model.detokenize(completion.filter((token) => token !== END), false) }));
    } else await inTurn(() => chat(JSON.parse(text), response));
  } catch (error) {
    if (response.headersSent) response.destroy();
    else response.writeHead(500).end(JSON.stringify({ error: { message: String(error?.stack ?? error) } }));
  }
});
server.listen(0, "127.0.0.1", () => console.log(`http://127.0.0.1:${server.address().port}`));

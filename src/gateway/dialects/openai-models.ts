/** `GET /v1/models`, the same for both of OpenAI's dialects; `max_model_len` is vLLM's word for the window. */
export function encodeModels(models: readonly { readonly id: string; readonly contextTokens: number | null }[]): unknown {
  const data = models.map(({ id, contextTokens }) => ({ id, object: "model", created: 0, owned_by: "manyworlds", ...(contextTokens === null ? {} : { max_model_len: contextTokens }) }));
  return { object: "list", data };
}

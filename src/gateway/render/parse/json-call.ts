/** Calls that are JSON objects: `{"name": ..., "arguments": {...}}`. */
import { announce, TOOL_NAME, type CallContext } from "./answer.ts";
import type { Step } from "./input.ts";
import { readString, readValue, stringOf, type JsonEnd } from "./json.ts";

/** `none`: no call, and nothing was put out. Otherwise how the object ended, once its name and arguments were known. */
export function* readCallObject(context: CallContext): Step<JsonEnd | "none"> {
  const { input, output } = context;
  if (!(yield* input.accept("{"))) return "none";
  let name: string | null = null;
  let early: string | null = null;
  let announced = false;
  for (;;) {
    yield* input.space();
    const key = yield* readText(context);
    yield* input.space();
    if (key === null || !(yield* input.accept(":"))) return announced ? "broken" : "none";
    yield* input.space();
    if ((key === "arguments" || key === "parameters") && name !== null && !announced) {
      announce(context, name);
      announced = true;
      const end = yield* readValue(input, (text) => output.arguments(text));
      if (end !== "whole") return end;
    } else if ((key === "arguments" || key === "parameters") && name === null && early === null) {
      let value = "";
      if ((yield* readValue(input, (text) => (value += text))) !== "whole") return "none";
      early = value;
    } else if (key === "name" && name === null) {
      name = yield* readText(context);
      if (name === null || !TOOL_NAME.test(name)) return "none";
    } else if (key === "id" || key === "type") {
      if ((yield* readText(context)) === null) return announced ? "broken" : "none";
    } else return announced ? "broken" : "none";
    yield* input.space();
    const next = yield* input.acceptOne([",", "}"]);
    if (next === null) return announced ? ((yield* input.atEnd()) ? "cut" : "broken") : "none";
    if (next === "," ) continue;
    if (announced) return "whole";
    if (name === null) return "none";
    announce(context, name);
    output.arguments(early ?? "{}");
    return "whole";
  }
}

function* readText({ input }: CallContext): Step<string | null> {
  if ((yield* input.peek(1)) !== '"') return null;
  let text = "";
  const end = yield* readString(input, (part) => (text += part));
  return end === "whole" ? stringOf(text) : null;
}

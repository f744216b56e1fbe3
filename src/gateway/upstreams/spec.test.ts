import { describe, expect, it } from "vitest";
import { MwError } from "../../core/errors.ts";
import { parseUpstreamSpec } from "./spec.ts";

describe("an upstream as the user names it", () => {
  it.each([
    ["http://127.0.0.1:8000", "openai", "http://127.0.0.1:8000/v1", "http://127.0.0.1:8000"],
    ["http://127.0.0.1:8000/v1/", "openai", "http://127.0.0.1:8000/v1", "http://127.0.0.1:8000"],
    ["https://host/v1beta/openai/", "openai", "https://host/v1beta/openai", "https://host/v1beta/openai"],
    ["vllm=http://127.0.0.1:8000", "vllm", "http://127.0.0.1:8000/v1", "http://127.0.0.1:8000"],
    [" VLLM=http://h:1/v1 ", "vllm", "http://h:1/v1", "http://h:1"],
    ["sglang=http://h:1/base/", "sglang", "http://h:1/base/v1", "http://h:1/base"],
    ["openai=https://[::1]:8/x", "openai", "https://[::1]:8/x", "https://[::1]:8/x"],
  ])("%s", (text, kind, url, root) => {
    expect(parseUpstreamSpec(text, "--upstream")).toEqual({ kind, url, root });
  });

  it.each([
    ["", "is no URL"],
    ["vllm=", "is no URL"],
    ["127.0.0.1:8000", "has no scheme"],
    ["vllm=localhost:8000", "has no scheme"],
    ["tgi=http://h:1", "no upstream kind \"tgi\""],
    ["ftp://h/", "has the scheme ftp:"],
    ["http://user:secret@h/v1", "holds credentials"],
    ["http://h/v1?key=secret", "has a query"],
    ["http://h/v1#x", "has a fragment"],
    ["vllm=http://h/v1/chat/completions", "names one endpoint"],
    ["sglang=http://h:1/generate", "names one endpoint"],
  ])("is refused with what is wrong and what to do: %j", (text, why) => {
    let error: unknown;
    try {
      parseUpstreamSpec(text, "--upstream");
    } catch (caught) {
      error = caught;
    }
    if (!(error instanceof MwError)) throw new Error("expected a refusal", { cause: error });
    expect(error).toMatchObject({ code: "usage", message: expect.stringContaining(why) as string });
    expect(error.message).toContain("--upstream");
    expect(error.message).not.toContain("user:secret");
    expect(error.fix).toBeTruthy();
  });
});

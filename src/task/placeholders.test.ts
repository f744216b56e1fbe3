import { expect, test } from "vitest";
import { MwError } from "../core/errors.ts";
import { expandPlaceholders, hasEmbeddedPlaceholder, requiredVariables } from "./placeholders.ts";

const host = (name: string): string | undefined => ({ KEY: "k", EMPTY: "" })[name];

test("whole values are replaced, everything else stays", () => {
  const env = { A: "${KEY}", B: "${NO:-fallback}", C: "${NO:-}", D: "plain", E: "x${KEY}", F: "${EMPTY:-d}", G: "${NO:-a:-b}", H: "$KEY" };
  expect(expandPlaceholders(env, host, "[environment.env]")).toEqual({ A: "k", B: "fallback", C: "", D: "plain", E: "x${KEY}", F: "", G: "a:-b", H: "$KEY" });
});

test("every missing variable is named at once", () => {
  const error = (() => {
    try {
      expandPlaceholders({ A: "${X}", B: "${Y}", C: "${X}" }, host, "[verifier.env]");
    } catch (thrown) {
      return thrown as MwError;
    }
    return null;
  })();
  expect(error).toMatchObject({ code: "environment", message: "[verifier.env] needs the environment variables X, Y, which are not set" });
  expect(error?.fix).toContain("X=... Y=...");
});

test("what is needed, what looks like a mistake", () => {
  expect(requiredVariables({ A: "${X}", B: "${Y:-1}", C: "z" })).toEqual(["X"]);
  expect(hasEmbeddedPlaceholder("http://${HOST}/")).toBe(true);
  expect(hasEmbeddedPlaceholder("${HOST}")).toBe(false);
});

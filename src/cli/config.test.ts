import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, describe, expect, it } from "vitest";
import { loadConfig } from "./config.ts";

let place = "";
beforeEach(() => {
  place = mkdtempSync(join(tmpdir(), "mw-config-"));
  mkdirSync(join(place, "config", "manyworlds"), { recursive: true });
  mkdirSync(join(place, "project", "deep", "er"), { recursive: true });
});
afterEach(() => rmSync(place, { recursive: true, force: true }));

const env = (more: Readonly<Record<string, string>> = {}) => ({ HOME: place, XDG_CONFIG_HOME: join(place, "config"), ...more });
const user = (text: string): void => writeFileSync(join(place, "config", "manyworlds", "config.toml"), text);
const project = (text: string): void => writeFileSync(join(place, "project", "manyworlds.toml"), text);
const cwd = (): string => join(place, "project", "deep", "er");

describe("loadConfig", () => {
  it("prefers flags, then the environment, then the project, then the user, then defaults, and says which", () => {
    const value = (flags: object, variables: Readonly<Record<string, string>> = {}): unknown => {
      const config = loadConfig(env(variables), cwd(), flags);
      return [config.get("attempts"), config.origin("attempts")];
    };
    expect(value({})).toEqual([1, "default"]);
    user("[run]\nattempts = 2\n");
    expect(value({})).toEqual([2, `${join(place, "config", "manyworlds", "config.toml")}: run.attempts`]);
    project("[run]\nattempts = 3\n");
    expect(value({})).toEqual([3, `${join(place, "project", "manyworlds.toml")}: run.attempts`]);
    expect(value({}, { MW_ATTEMPTS: "4" })).toEqual([4, "MW_ATTEMPTS"]);
    expect(value({ attempts: 5 }, { MW_ATTEMPTS: "4" })).toEqual([5, "--attempts"]);
    // An empty variable is an unset one.
    expect(value({}, { MW_ATTEMPTS: "" })).toEqual([3, expect.stringContaining("manyworlds.toml")]);
  });

  it("takes paths in a file relative to the file, elsewhere relative to the working directory", () => {
    project('[run]\napi-key-file = "key"\n');
    expect(loadConfig(env(), cwd()).get("apiKeyFile")).toBe(join(place, "project", "key"));
    expect(loadConfig(env({ MW_API_KEY_FILE: "key" }), cwd()).get("apiKeyFile")).toBe(join(cwd(), "key"));
    expect(loadConfig(env(), cwd(), { apiKeyFile: "../key" }).get("apiKeyFile")).toBe(join(place, "project", "deep", "key"));
  });

  it("overlays the user's image names with the project's", () => {
    user('[image.aliases]\n"python:3.12-slim" = "user"\n"a.b/c:1" = "kept"\n');
    project('[image.aliases]\n"python:3.12-slim" = "project"\n');
    expect(loadConfig(env(), cwd()).imageAliases).toEqual({ "python:3.12-slim": "project", "a.b/c:1": "kept" });
  });

  it("finds the data directory by the XDG rules", () => {
    expect(loadConfig(env(), cwd()).home).toEqual({ value: join(place, ".local/share/manyworlds"), origin: "default" });
    expect(loadConfig(env({ XDG_DATA_HOME: "/data" }), cwd()).home).toEqual({ value: "/data/manyworlds", origin: "XDG_DATA_HOME" });
    expect(loadConfig(env({ XDG_DATA_HOME: "relative" }), cwd()).home.value).toBe(join(place, ".local/share/manyworlds"));
    expect(loadConfig(env({ MW_HOME: "here" }), cwd()).home).toEqual({ value: join(cwd(), "here"), origin: "MW_HOME" });
  });

  it.each([
    ["[run]\nattempts = true\n", /run\.attempts is a boolean/],
    ["[run]\nattempts = []\n", /run\.attempts is a list/],
    ["[run]\nattempts = 0\n", /run\.attempts: expected a whole number/],
    ["[run]\natempts = 1\n", /no setting "run\.atempts"/],
    ['[image.aliases]\n"a" = 1\n', /image\.aliases\.a is no text/],
    ["[run\n", /cannot read the configuration/],
  ])("refuses %j by file and key", (text, message) => {
    project(text);
    expect(() => loadConfig(env(), cwd())).toThrow(message);
    expect(() => loadConfig(env(), cwd())).toThrow(/manyworlds\.toml/);
  });
});

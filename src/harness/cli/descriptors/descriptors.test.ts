import { readFileSync } from "node:fs";
import { describe, expect, it } from "vitest";
import { MwError } from "../../../core/errors.ts";
import type { CliDescriptor } from "../descriptor.ts";
import { genericCli } from "../generic.ts";
import { render, renderDocument, type TemplateValues } from "../template.ts";
import { CLI_DESCRIPTORS } from "./index.ts";

const VALUES: TemplateValues = {
  root: "/root", node: "/node", python: "/python", platform: "linux-x64", triple: "x86_64-unknown-linux-musl", home: "/home",
  baseUrl: "http://127.0.0.1:1", token: "T", model: "M", contextTokens: 1000, outputTokens: 250, uuid: "U", instruction: "I {token}",
};

const everyText = ({ command, rootArgs = [], env, rootEnv = {}, files }: CliDescriptor): readonly string[] => [...command, ...rootArgs, ...Object.values(env), ...Object.values(rootEnv), JSON.stringify(files)];

describe.each(CLI_DESCRIPTORS.map((descriptor) => [descriptor.name, descriptor] as const))("%s", (_name, descriptor) => {
  it("is plain data", () => {
    expect(JSON.parse(JSON.stringify(descriptor))).toEqual(descriptor);
    expect(descriptor.name).toMatch(/^[a-z][a-z0-9-]{1,30}$/);
    expect(descriptor.version).toMatch(/^\d+\.\d+\.\d+$/);
    expect(["openai-chat", "openai-responses", "anthropic", "gemini"]).toContain(descriptor.dialect);
  });

  it("pins what it installs", () => {
    const { install } = descriptor;
    if (install.kind === "npm") {
      expect(install.before).toMatch(/^\d{4}-\d{2}-\d{2}$/);
      expect(install.node ?? "24.0.0").toMatch(/^\d+\.\d+\.\d+$/);
    } else if (install.kind === "pypi") {
      for (const requirement of install.requirements) expect(requirement).toMatch(/^[a-z0-9][a-z0-9.-]*==\d[\w.]*$/);
      expect(install.requirements).toContain(`${descriptor.name}==${descriptor.version}`);
    } else expect.unreachable();
  });

  it("starts a program of its own, whatever the image's PATH holds", () => {
    expect(render(descriptor.command[0] ?? "", VALUES)).toMatch(/^\/(?:root|node|python)/);
  });

  it("uses known placeholders only, and says where the model is and what the task is", () => {
    for (const text of everyText(descriptor)) expect(() => render(text, VALUES)).not.toThrow();
    const all = everyText(descriptor).join("\n");
    for (const placeholder of ["{baseUrl}", "{token}", "{model}"]) expect(all).toContain(placeholder);
    expect(all.includes("{instruction}")).toBe(descriptor.instruction === "file");
  });

  it("keeps its files in its own directory", () => {
    expect([...Object.values(descriptor.env), ...descriptor.command].some((text) => text.startsWith("{home}"))).toBe(true);
    expect(Object.keys(descriptor.env)).not.toEqual(expect.arrayContaining(["HOME"]));
    for (const name of ["PATH", "LD_LIBRARY_PATH", "LD_PRELOAD", "PYTHONHOME", "PYTHONPATH", "NODE_OPTIONS", "TMPDIR"]) expect(descriptor.env).not.toHaveProperty(name);
    for (const path of [...descriptor.files.map((file) => file.path), ...descriptor.logs]) expect(path).not.toMatch(/^\/|(?:^|\/)\.\.(?:\/|$)/);
    expect(descriptor.logs.length).toBeGreaterThan(0);
  });

  it("has rules that are regular expressions and not all the same", () => {
    for (const { text } of descriptor.endings) if (text !== undefined) expect(() => new RegExp(text, "im")).not.toThrow();
    expect(descriptor.endings.map(({ means }) => means)).toEqual(expect.arrayContaining(["context_overflow", "model_error"]));
  });
});

describe("the descriptors", () => {
  it("are all in the documentation, with their versions", () => {
    const page = readFileSync(new URL("../../../../docs/harnesses.md", import.meta.url), "utf8");
    const rows = [...page.matchAll(/^\| `([\w-]+)` \| ([\d.]+) \|/gm)].map(([, name, version]) => [name, version]);
    expect(rows).toEqual(CLI_DESCRIPTORS.map(({ name, version }) => [name, version]));
  });

  it("have names of their own", () => {
    const names = CLI_DESCRIPTORS.map(({ name }) => name);
    expect(new Set(names).size).toBe(names.length);
    expect(names).not.toContain(genericCli("x").name);
  });
});

describe("templates", () => {
  it("replace in one pass: what stands in a value is no template", () => {
    expect(render("{instruction}:{token}", VALUES)).toBe("I {token}:T");
  });

  it("keep numbers where a text is nothing but the placeholder, and rename keys", () => {
    expect(renderDocument({ "{model}": ["{contextTokens}", "{contextTokens} tokens", 1, null, true] }, VALUES)).toEqual({ M: [1000, "1000 tokens", 1, null, true] });
  });

  it("refuse a placeholder that nobody knows, and leave other braces alone", () => {
    expect(() => render("{tokn}", VALUES)).toThrow(MwError);
    expect(() => render("{constructor}", VALUES)).toThrow(MwError);
    expect(render("${HOME} {} {A} { model }", VALUES)).toBe("${HOME} {} {A} { model }");
  });
});

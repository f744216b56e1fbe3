import * as fc from "fast-check";
import { describe, expect, it } from "vitest";
import { parametersOf, TOOLS, type Action, type ToolName, type ValueKind } from "./action.ts";
import { drawFaces } from "./draw.ts";
import { definitionOf, dress, readCall, type ToolFace } from "./face.ts";
import { PRESETS } from "./presets.ts";

const TOOL_NAMES = Object.keys(TOOLS) as ToolName[];
const words = fc.string({ unit: "binary", minLength: 1 }).filter((text) => !text.includes("\0") && text.trim() !== "");
const VALUES: Readonly<Record<ValueKind, fc.Arbitrary<unknown>>> = { text: words, count: fc.nat(), flag: fc.boolean(), milliseconds: fc.nat() };

/** Any action that these faces can ask for: of a tool that is shown, with those of its optional arguments that are shown. */
function actionFor(faces: readonly ToolFace[]): fc.Arbitrary<Action> {
  return fc.constantFrom(...faces).chain((face) => {
    const shown = parametersOf(face.tool).filter(([name]) => face.parameters.some(({ stands }) => stands === name));
    const fields = shown.map(([name, { kind, required }]) => [name, required ? VALUES[kind] : fc.option(VALUES[kind], { nil: undefined })] as const);
    return fc.record(Object.fromEntries(fields)).map((values) => Object.fromEntries([["tool", face.tool], ...Object.entries(values).filter(([, value]) => value !== undefined)]) as unknown as Action);
  });
}

const seeds = fc.string();
const subsets = fc.subarray(TOOL_NAMES, { minLength: 1 });

describe("faces", () => {
  it("give every action back exactly, however they were drawn", () => {
    fc.assert(
      fc.property(
        fc.tuple(seeds, subsets).chain(([seed, tools]) => {
          const faces = drawFaces(seed, tools);
          return fc.tuple(fc.constant(faces), actionFor(faces));
        }),
        ([faces, action]) => {
          expect(readCall(faces, dress(faces, action))).toEqual({ kind: "action", action });
        },
      ),
      { numRuns: 2000 },
    );
  });

  it("give every action back exactly in each preset", () => {
    for (const faces of Object.values(PRESETS)) {
      fc.assert(
        fc.property(actionFor(faces), (action) => {
          expect(readCall(faces, dress(faces, action))).toEqual({ kind: "action", action });
        }),
      );
    }
  });

  it("are drawn by the seed alone, with names that differ", () => {
    fc.assert(
      fc.property(seeds, subsets, (seed, tools) => {
        const faces = drawFaces(seed, tools);
        expect(drawFaces(seed, tools)).toEqual(faces);
        expect(faces.map(({ tool }) => tool).toSorted()).toEqual(tools.toSorted());
        expect(new Set(faces.map(({ name }) => name)).size).toBe(faces.length);
        for (const { parameters } of faces) expect(new Set(parameters.map(({ name }) => name)).size).toBe(parameters.length);
      }),
    );
    const names = new Set(Array.from({ length: 200 }, (_, n) => JSON.stringify(drawFaces(String(n), TOOL_NAMES).map(definitionOf))));
    expect(names.size).toBe(200);
  });

  it("are shown with every required argument, and refuse calls without one by its shown name", () => {
    for (const faces of [...Object.values(PRESETS), drawFaces("a", TOOL_NAMES), drawFaces("b", TOOL_NAMES)]) {
      for (const face of faces) {
        const required = parametersOf(face.tool).filter(([, spec]) => spec.required);
        const shown = JSON.stringify(definitionOf(face).parameters);
        for (const [stands] of required) {
          const name = face.parameters.find((parameter) => parameter.stands === stands)?.name ?? "";
          expect(shown).toContain(JSON.stringify(name));
          const empty = face.wrapper === null ? {} : { [face.wrapper]: {} };
          expect(readCall(faces, { name: face.name, arguments: JSON.stringify(empty) }).kind).toBe("invalid");
        }
      }
    }
  });

  it("take what models send for what it is", () => {
    const faces = PRESETS["claude-like"];
    const read = (name: string, args: string): unknown => readCall(faces, { name, arguments: args });
    expect(read("Bash", '{"command":"ls","timeout":"5000","description":"x","surplus":1}')).toEqual({ kind: "action", action: { tool: "shell", command: "ls", timeoutMs: 5000 } });
    expect(read("Read", '{"file_path":"/a","offset":null}')).toEqual({ kind: "action", action: { tool: "read", path: "/a" } });
    for (const [name, args, why] of [
      ["bash", '{"command":"ls"}', /no tool named "bash".*Bash, Read/],
      ["Bash", '{"command":', /not valid JSON/],
      ["Bash", "[1]", /must be a JSON object/],
      ["Bash", '{"command":" "}', /empty/],
      ["Bash", '{"command":"a\\u0000b"}', /NUL/],
      ["Bash", '{"command":7}', /"command" must be a string/],
      ["Bash", '{"command":"ls","timeout":-1}', /"timeout" must be a whole number/],
      ["Read", "", /"file_path" is missing/],
      ["Read", '{"__proto__":{"file_path":"/a"}}', /"file_path" is missing/],
    ] as const) expect(read(name, args)).toEqual({ kind: "invalid", why: expect.stringMatching(why) as string });
  });

  it("never throw, whatever a model sends", () => {
    fc.assert(fc.property(seeds, fc.string(), fc.oneof(fc.string(), fc.json()), (seed, name, args) => {
      const faces = drawFaces(seed, TOOL_NAMES);
      for (const called of [name, faces[0]?.name ?? ""]) expect(["action", "invalid"]).toContain(readCall(faces, { name: called, arguments: args }).kind);
    }));
  });

  it("put a list of words together to the command that it is", () => {
    const faces: readonly ToolFace[] = [{ tool: "shell", name: "run", description: "", wrapper: null, parameters: [{ stands: "command", name: "argv", description: "", spelling: "argv" }] }];
    const command = (argv: unknown): unknown => readCall(faces, { name: "run", arguments: JSON.stringify({ argv }) });
    expect(command(["bash", "-lc", "ls | wc"])).toMatchObject({ action: { command: "ls | wc" } });
    expect(command(["git", "commit", "-m", "it's done"])).toMatchObject({ action: { command: "git commit -m 'it'\\''s done'" } });
    expect(command("ls -l")).toMatchObject({ action: { command: "ls -l" } });
    expect(command([])).toMatchObject({ kind: "invalid" });
  });
});

import { describe, expect, it } from "vitest";
import type { Message } from "../../gateway/conversation.ts";
import { fencedCommand } from "./fenced.ts";
import { trimmed } from "./history.ts";
import { drawSetup, fencedSetup, presetSetup } from "./setup.ts";
import { PRESETS, type PresetName } from "./presets.ts";

describe("fencedCommand", () => {
  it.each([
    ["I look.\n```bash\nls -l\n```\n", { kind: "command", command: "ls -l\n" }],
    ["```sh\ncat <<'E'\n``x``\nE\n```", { kind: "command", command: "cat <<'E'\n``x``\nE\n" }],
    ["```bash\r\nls\r\n```", { kind: "command", command: "ls\r\n" }],
    ["Done.", { kind: "none" }],
    ["```python\nprint(1)\n```", { kind: "none" }],
    ["```bash\nls", { kind: "invalid", why: expect.stringContaining("not closed") as string }],
    ["```bash\nls\n```\n```bash\npwd\n```", { kind: "invalid", why: expect.stringContaining("2 blocks") as string }],
    ["```bash\n\n```", { kind: "invalid", why: expect.stringContaining("empty") as string }],
    ["```bash\na\0b\n```", { kind: "invalid", why: expect.stringContaining("NUL") as string }],
  ])("reads %j", (text, command) => {
    expect(fencedCommand(text)).toEqual(command);
  });
});

describe("trimmed", () => {
  const turn = (n: number): readonly Message[] => [
    { role: "assistant", content: [{ type: "tool_call", id: `c${n}`, name: "bash", arguments: "{}" }] },
    { role: "tool", callId: `c${n}`, name: "bash", content: [{ type: "text", text: `a long output of turn ${n}` }], isError: false },
  ];
  const history: readonly Message[] = [{ role: "user", content: [{ type: "text", text: "Do it." }] }, ...[1, 2, 3, 4, 5].flatMap(turn)];

  it("leaves out the outputs of all but the last turns, and nothing else", () => {
    const shorter = trimmed(history);
    expect(shorter?.map(({ content }) => content).filter((_, at) => at % 2 === 1)).toEqual(history.map(({ content }) => content).filter((_, at) => at % 2 === 1));
    expect(shorter?.filter(({ role }) => role === "tool").map(({ content }) => (content[0] as { text: string }).text)).toEqual([
      "[output left out]",
      "[output left out]",
      "a long output of turn 3",
      "a long output of turn 4",
      "a long output of turn 5",
    ]);
  });

  it("says when nothing is left to leave out", () => {
    expect(trimmed(trimmed(history) ?? [])).toBe(null);
    expect(trimmed(history.slice(0, 3))).toBe(null);
  });
});

describe("setups", () => {
  it("are data: the record holds all of them", () => {
    for (const setup of [fencedSetup(), drawSetup("x"), ...(Object.keys(PRESETS) as PresetName[]).map(presetSetup)]) expect(JSON.parse(JSON.stringify(setup))).toEqual(setup);
    expect(drawSetup("x")).toEqual(drawSetup("x"));
    expect(drawSetup("x")).not.toEqual(drawSetup("y"));
  });

  it("always have a shell", () => {
    for (let n = 0; n < 200; n++) expect(drawSetup(String(n)).faces.some(({ tool }) => tool === "shell")).toBe(true);
  });
});

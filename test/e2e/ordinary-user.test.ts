/** The CLI as an ordinary user: what its machines lack is found before anything starts, and said once. */
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { ordinaryUser, type OrdinaryUser } from "../support/as-user.ts";

const MW = `${process.execPath} dist/cli/main.js`;

describe.runIf(process.getuid?.() === 0)("an ordinary user without subordinate ids", () => {
  let user: OrdinaryUser;
  beforeAll(() => {
    user = ordinaryUser();
  });
  afterAll(() => user.remove());
  const mw = (args: string): Promise<{ readonly code: number; readonly output: string }> => user.run(`${MW} ${args}`, { subordinateIds: false });

  it("is told by doctor what is there, each thing once", async () => {
    const { code, output } = await mw("doctor --json");
    expect(code, output).toBe(0);
    const { probes } = JSON.parse(output) as { readonly probes: readonly { readonly name: string; readonly state: string; readonly detail: string }[] };
    expect(probes.filter(({ name }) => /public/.test(name)).length).toBe(1);
    expect(new Set(probes.map(({ name }) => name)).size).toBe(probes.length);
    expect(probes.find(({ name }) => name === "users besides root")).toMatchObject({ state: "absent", detail: expect.stringContaining("subuid") });
  });

  it.each(["share-permissions", "deploy-account", "kv-service"])("is refused the task %s, which needs a second user, with the reason once and before anything is made", async (task) => {
    const { code, output } = await mw(`run worlds/terminal/${task} --harness oracle --ignore-limits`);
    expect(code, output).toBe(3);
    expect(output).toMatch(/cannot be honoured here.*other users than root do not exist/);
    expect(output.split("/etc/subuid").length).toBe(2);
    expect(output).not.toContain("preparing");
  });

  it("gives a reason that several limits share once", async () => {
    const { code, output } = await mw("run worlds/terminal/git-rescue --harness oracle");
    expect(code, output).toBe(3);
    expect(output).toContain("[environment] cpus, [environment] memory_mb: cannot be enforced here");
    expect(output.split("no control group hierarchy").length).toBe(2);
  });
});

import { readdirSync, readFileSync } from "node:fs";
import { expect, it } from "vitest";
import { readTree } from "./unpacker.ts";

/** Processes that this one started and that run this program. */
function children(program: string): readonly number[] {
  return readdirSync("/proc")
    .filter((name) => /^\d+$/.test(name))
    .map(Number)
    .filter((pid) => {
      try {
        const stat = readFileSync(`/proc/${pid}/stat`, "utf8");
        return stat.includes(`(${program})`) && Number(stat.slice(stat.lastIndexOf(")") + 2).split(" ")[1]) === process.pid;
      } catch {
        return false;
      }
    });
}

it("takes an unpacker that somebody killed for a failure of the host, not of the image", async () => {
  const read = async (): Promise<void> => {
    let killed = false;
    for await (const _event of readTree("/usr")) {
      if (!killed) for (const pid of children("unpack")) process.kill(pid, "SIGKILL");
      killed = true;
    }
  };
  await expect(read()).rejects.toMatchObject({ code: "sandbox_failed", message: expect.stringContaining("SIGKILL") as unknown });
});

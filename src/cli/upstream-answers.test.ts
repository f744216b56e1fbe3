import { createServer, type AddressInfo, type Server } from "node:net";
import { afterEach, describe, expect, it } from "vitest";
import { expectUpstream } from "./upstream-answers.ts";

let server: Server | null = null;

async function listen(): Promise<number> {
  const listening = createServer((socket) => socket.destroy());
  server = listening;
  await new Promise<void>((resolve) => listening.listen(0, "127.0.0.1", resolve));
  return (listening.address() as AddressInfo).port;
}

async function close(): Promise<void> {
  const listening = server;
  server = null;
  if (listening !== null) await new Promise((resolve) => listening.close(resolve));
}

afterEach(close);

describe("expectUpstream", () => {
  it("lets a server pass, whatever it says", async () => {
    await expectUpstream(`http://127.0.0.1:${await listen()}/v1`, {});
  });

  it("refuses an address where nobody listens", async () => {
    const port = await listen();
    await close();
    await expect(expectUpstream(`http://127.0.0.1:${port}/v1`, {})).rejects.toMatchObject({ code: "environment", message: expect.stringContaining("ECONNREFUSED") as unknown, fix: expect.stringContaining("--upstream") as unknown });
  });

  it("leaves it to a proxy to know", async () => {
    const port = await listen();
    await close();
    await expectUpstream(`http://127.0.0.1:${port}/v1`, { HTTPS_PROXY: "http://proxy:3128" });
  });
});

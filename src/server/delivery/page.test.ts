/** The exchanges that docs/delivery.md shows happen as they stand there. */
import { mkdtempSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";
import { expect, it } from "vitest";
import { startDeliveryServer } from "../../../test/support/delivery/delivery-server.ts";

const PAGE = resolve(import.meta.dirname, "../../../docs/delivery.md");

it("the exchanges of docs/delivery.md", async () => {
  const directory = mkdtempSync(join(tmpdir(), "mw-delivery-page-"));
  const server = await startDeliveryServer(directory);
  try {
    const exchanges = [...readFileSync(PAGE, "utf8").matchAll(/^```http\n([\s\S]*?)^```/gm)].map(([, text = ""]) => text);
    expect(exchanges.length).toBeGreaterThan(8);
    for (const exchange of exchanges) {
      const [sent = "", received = ""] = exchange.split("\n\n");
      const [line = "", ...body] = sent.split("\n");
      const [method = "", path = ""] = line.split(" ");
      const [status, ...answer] = received.split("\n");
      const response = await fetch(`${server.url}${path}`, { method, headers: { accept: "application/json", ...(body.length === 0 ? {} : { "content-type": "application/json" }) }, ...(body.length === 0 ? {} : { body: body.join("\n") }) });
      expect([line, response.status]).toEqual([line, Number(status)]);
      expect(await response.json()).toMatchObject(JSON.parse(answer.join("\n")) as object);
    }
  } finally {
    await server.close();
    rmSync(directory, { recursive: true, force: true });
  }
});

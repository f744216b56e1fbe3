/** The dashboard of what is alive: `mw serve` with sandboxes and a training, `mw show --web`, and `mw run --ui` while its agent works. */
import { spawn } from "node:child_process";
import { mkdirSync, mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import type { Page } from "playwright-core";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { DashboardBrowser, tooWide, violations } from "./browser.ts";
import { train, type Training } from "../support/dashboard/training.ts";
import { startEngine } from "../support/engine/index.ts";
import { MODEL_DIRECTORY } from "../support/engine/tokenizer.ts";
import { leftoversAfter } from "../support/leftovers.ts";
import { serve, type Served } from "../support/serve.ts";
import { writeTask } from "../support/tasks.ts";
import { mortal } from "../support/mortal.ts";

const place = mkdtempSync(join(tmpdir(), "mw-dashboard-served-"));
const home = join(place, "home");
const MAIN = fileURLToPath(new URL("../../dist/cli/main.js", import.meta.url));
let served: Served;
let browser: DashboardBrowser;
let training: Training;

beforeAll(async () => {
  mkdirSync(home);
  served = await serve({ home });
  browser = await DashboardBrowser.at({ url: served.url, fragment: "", close: () => served.stop().then(() => undefined) });
  training = await train(served.url, join(place, "lesson"));
});
afterAll(async () => {
  await browser?.close();
  expect(await leftoversAfter(home)).toEqual([]);
  rmSync(place, { recursive: true, force: true });
});

/** Name and note of each bar in a card. */
function bars(page: Page, card: string): Promise<readonly (readonly string[])[]> {
  return page.locator(`section.card[aria-label="${card}"] .barrow`).evaluateAll((rows) => rows.map((row) => [row.firstElementChild?.textContent ?? "", row.lastElementChild?.textContent ?? ""]));
}

/** Accessible, and as wide as its screen, as it is and at 400 pixels in the dark. */
async function expectSound(path: string, text: string): Promise<void> {
  for (const options of [{}, { width: 400, scheme: "dark" }] as const) {
    const { page, complaints, close } = await browser.screen(path, options);
    await page.getByText(text).first().waitFor();
    expect([path, await violations(page), await tooWide(page), complaints]).toEqual([path, [], 0, []]);
    await close();
  }
}

describe("a training", () => {
  it("shows its versions, how stale what it consumed was, its queue and credits, and what gave no gradient", async () => {
    const { page, complaints, close } = await browser.screen("/trainer");
    await page.getByRole("link", { name: training.name }).click();
    await page.getByText("Staleness of what was consumed").waitFor();
    await page.waitForFunction(() => document.querySelectorAll('section.card[aria-label="Staleness of what was consumed"] .barrow').length === 2);
    expect(await bars(page, "Staleness of what was consumed")).toEqual([["1", "2"], ["2", "2"]]);
    expect(await bars(page, "Versions that sampled it")).toEqual([["1", "2"], ["2", "2"]]);
    expect(await bars(page, "Queue")).toEqual([["waiting", "0"], ["running", "0"], ["ready", "0"], ["leased", "3"]]);
    expect(await bars(page, "Groups of no use, by cause")).toEqual([["rejected: filtered", "2"]]);
    expect((await bars(page, "Groups and their gradient")).map(([name, note]) => [name, note?.split(" ")[0]])).toEqual([["rewards differ", "2"], ["all passed", "4"], ["none passed", "3"], ["alike in between", "0"], ["fewer than two scored", "0"]]);
    const figures = await page.locator(".kpi").evaluateAll((all) => all.map((one) => one.textContent));
    expect(figures).toContainEqual(expect.stringContaining("Credits9groups"));
    expect(figures).toContainEqual(expect.stringContaining("Consumed4"));
    await page.getByText("the trainer works on what it has leased").waitFor();
    expect(complaints).toEqual([]);
    await close();
    await expectSound(`/trainer/${training.name}`, "Queue");
  });

  it("makes a task easier from version to version", async () => {
    const { page, complaints, close } = await browser.screen("/tasks");
    const row = page.locator("tr", { hasText: "lesson/middle" });
    expect(await row.locator("[role=img]").getAttribute("aria-label")).toBe("passed version 1: 1 of 3, version 2: 2 of 3, version 3: 3 of 3");
    await row.getByRole("link").click();
    await page.getByText("Difficulty by version of the policy").waitFor();
    expect((await bars(page, "Difficulty by version of the policy")).map(([name, note]) => [name, note?.split(" ").slice(0, 3).join("")])).toEqual([["version 1", "1/3"], ["version 2", "2/3"], ["version 3", "3/3"]]);
    expect(complaints).toEqual([]);
    await close();
    await expectSound(`/task?directory=${encodeURIComponent(training.learnt)}`, "Difficulty by version");
  });
});

describe("a sandbox", () => {
  it("has a shell, is paused, resumed, forked and killed from its page", async () => {
    const made = await fetch(`${served.url}/v1/sandboxes`, { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify({ image: "host", ttl_ms: 3_600_000, metadata: { who: '<img src=x onerror="document.title=1">\u202eme' } }) });
    const { id } = (await made.json()) as { readonly id: string };
    const { page, complaints, close } = await browser.screen("/sandboxes");
    await page.getByText("⟨U+202E⟩me").waitFor();
    await page.getByRole("link", { name: id }).click();
    await page.getByRole("button", { name: "Open a shell" }).click();
    const screen = page.locator(".xterm-rows");
    await screen.getByText("root@").first().waitFor();
    await page.keyboard.type("echo $((6 * 7)) > /kept; printf '\\033]0;owned\\007\\033]52;c;b3duZWQ=\\007'; cat /kept\n");
    await page.waitForFunction(() => [...document.querySelectorAll(".xterm-rows > div")].some((row) => row.textContent === "42"));
    // Its keys are the shell's, not the page's.
    await page.keyboard.type("?");
    expect(await page.getByRole("dialog").count()).toBe(0);
    expect(await page.title()).toBe("Sandboxes · Manyworlds");
    expect(await violations(page)).toEqual([]);

    await page.getByRole("button", { name: "Pause" }).click();
    await page.getByRole("button", { name: "Resume" }).click();
    await page.getByRole("button", { name: "Pause" }).waitFor();
    await page.getByRole("button", { name: "Fork" }).click();
    await page.waitForFunction((before) => !location.pathname.endsWith(before), id);
    const child = new URL(page.url()).pathname.split("/").at(-1) ?? "";
    // A child goes on from its parent's files.
    await page.getByRole("button", { name: "Open a shell" }).click();
    await page.locator(".xterm-rows").getByText("root@").first().waitFor();
    await page.keyboard.type("cat /kept\n");
    await page.waitForFunction(() => [...document.querySelectorAll(".xterm-rows > div")].some((row) => row.textContent === "42"));

    page.on("dialog", (dialog) => void dialog.accept());
    await page.getByRole("button", { name: "Kill" }).click();
    await page.getByText("That sandbox is gone").waitFor();
    const { sandboxes } = await browser.get<{ readonly sandboxes: readonly { readonly id: string }[] }>("/v1/sandboxes");
    expect(sandboxes.map((one) => one.id)).toEqual([id]);
    expect(child).not.toBe(id);
    // A question about its use may meet a machine that has just been paused or killed, and is told so.
    expect(complaints.filter((text) => !/40[49] \(/.test(text))).toEqual([]);
    await close();
    await fetch(`${served.url}/v1/sandboxes/${id}`, { method: "DELETE" });
  });

  it("of a rollout is listed with what it uses, and leads to its rollout", async () => {
    const engine = await startEngine([{ content: null, calls: [{ command: "echo waiting; sleep 600" }] }], { flavour: "sglang" });
    const ask = (method: string, path: string, body: unknown): Promise<Response> => fetch(`${served.url}${path}`, { method, headers: { "content-type": "application/json", accept: "application/json" }, body: JSON.stringify(body) });
    await ask("PUT", "/v1/runs/slow", { tokenizer: { directory: MODEL_DIRECTORY }, group_size: 1 });
    await ask("PUT", "/v1/runs/slow/policy", { version: 1, model: "test-model", endpoints: [{ url: engine.root, kind: "sglang" }] });
    await ask("POST", "/v1/runs/slow/groups", { groups: [{ group_id: "one", task: training.learnt }] });
    const { page, complaints, close } = await browser.screen("/sandboxes");
    const row = page.getByRole("group", { name: "Machines of runs" }).locator("tbody tr").first();
    await row.getByText("running").waitFor();
    await row.getByRole("link").first().click();
    await page.getByRole("slider", { name: "Time in the rollout" }).waitFor();
    await page.locator(".pill.live", { hasText: "agent at work" }).waitFor();
    expect(complaints).toEqual([]);
    await close();
    await expectSound("/sandboxes", "At work for runs: 1");
    await ask("POST", "/v1/runs/slow/cancel", { all: true });
    await engine.close();
  });
});

describe("a command", () => {
  it("mw show --web prints a link that opens its run, and takes the key out of the address", async () => {
    const shown = command(["show", "latest", "--web"]);
    const link = await shown.line(/http:\S+\/ui\/\S+/);
    expect(link).toContain("#key=");
    const { page, complaints, close } = await browser.screen(link);
    await page.getByText("Reward over time").waitFor();
    expect(page.url()).not.toContain("key=");
    // Over a data directory alone there are neither machines nor deliveries to look at.
    expect(await page.getByRole("navigation", { name: "Main" }).getByRole("link").allTextContents()).toEqual(["Manyworlds", "Runs", "Tasks"]);
    expect(complaints).toEqual([]);
    // Whoever has a wrong key is asked for the right one, which then opens the page.
    await page.evaluate(() => sessionStorage.setItem("mw-key", "wrong"));
    await page.reload();
    await page.getByText("This server asks for its key").waitFor();
    await page.getByRole("textbox", { name: "Key" }).fill(link.split("#key=")[1] ?? "");
    await page.getByRole("button", { name: "Open" }).click();
    await page.getByText("Reward over time").waitFor();
    expect(await shown.interrupt()).toBe(0);
    await close();
  });

  it("mw run --ui shows a rollout word by word while its agent works, and says when the server is gone", async () => {
    const task = writeTask(join(place, "slow"), { name: "slow/words" });
    const engine = await startEngine(({ turn, body }) =>
      turn < 3 ? { content: `Word number ${turn}. ${"It says more, and more, and takes its time. ".repeat(turn === 1 ? 6 : 0)}`, delayMs: 1_500, ...(turn === 1 && body["stream"] === true ? { trickleMs: 60 } : {}), calls: [{ command: `mkdir -p /work; echo hello > /work/out; echo output ${turn}` }] } : { content: "done", delayMs: 8_000 });
    const own = join(place, "own");
    const running = command(["run", task, "--harness", "bash", "--upstream", `vllm=${engine.root}`, "--model", "test-model", "--ui"], own);
    const link = await running.line(/http:\S+\/ui\/\S+/);
    const { page, close } = await browser.screen(link);
    await page.getByRole("link", { name: /^Running/ }).click();
    await page.locator("tbody tr a").first().click();
    // The words of each call come to a page that nobody reloads.
    await page.evaluate(() => ((globalThis as unknown as { loaded: boolean }).loaded = true));
    // What it shows of the answer that takes its time, whenever that is another text than before.
    await page.evaluate(() => {
      const seen: string[] = [];
      (globalThis as unknown as { seen: string[] }).seen = seen;
      new MutationObserver(() => {
        const text = document.querySelector('article[aria-label="agent, call 2, under way"] .out')?.textContent ?? "";
        if (text !== (seen.at(-1) ?? "")) seen.push(text);
      }).observe(document.body, { subtree: true, childList: true, characterData: true });
    });
    for (const turn of [0, 1, 2]) await page.getByText(`Word number ${turn}.`).waitFor();
    await page.locator(".pill.live").first().waitFor();
    await page.locator(".pill", { hasText: /passed/ }).waitFor();
    expect(await page.evaluate(() => (globalThis as unknown as { loaded?: boolean }).loaded)).toBe(true);
    const seen = await page.evaluate(() => (globalThis as unknown as { seen: string[] }).seen);
    expect(seen.filter((text) => text !== "").length).toBeGreaterThan(3);
    for (const [at, text] of seen.entries()) if (at > 0 && text !== "") expect(text.startsWith(seen[at - 1] ?? "")).toBe(true);
    // An answer stands there once: as it grows, or as it is recorded.
    expect(await page.getByText("Word number 1.").count()).toBe(1);
    expect(await running.ended).toBe(0);
    await page.getByRole("link", { name: "Files" }).click();
    await page.getByText("The server does not answer").first().waitFor();
    await close();
    await engine.close();
  });
});

interface Command {
  readonly ended: Promise<number | null>;
  /** The first match of what it prints, on either stream. */
  line(pattern: RegExp): Promise<string>;
  interrupt(): Promise<number | null>;
}

function command(args: readonly string[], data = home): Command {
  const child = mortal(spawn(process.execPath, [MAIN, ...args], { env: { PATH: process.env["PATH"], HOME: place, MW_HOME: data }, stdio: ["ignore", "pipe", "pipe"] }));
  let printed = "";
  for (const stream of [child.stdout, child.stderr]) stream.on("data", (data: Buffer) => (printed += data.toString()));
  const ended = new Promise<number | null>((resolve) => child.once("close", resolve));
  return {
    ended,
    line: async (pattern) => {
      for (;;) {
        const found = pattern.exec(printed);
        if (found !== null) return found[0];
        const code = await Promise.race([ended, new Promise<undefined>((resolve) => setTimeout(() => resolve(undefined), 50))]);
        if (code !== undefined && pattern.exec(printed) === null) throw new Error(`${args.join(" ")} ended with ${code}: ${printed}`);
      }
    },
    interrupt: () => {
      child.kill("SIGINT");
      return ended;
    },
  };
}

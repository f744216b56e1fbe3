/** The dashboard over what is large: ten thousand rollouts, half a million tokens, five thousand events, and a run that says hundreds of things a second. */
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import type { Page } from "playwright-core";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { DashboardBrowser } from "./browser.ts";
import { writeLongRollout } from "../support/dashboard/long-rollout.ts";
import type { RunEvent } from "../../src/rollout/events.ts";
import { LiveRun } from "../../src/server/runs/live-run.ts";
import { begin, end, writeRun } from "../support/run-fixture.ts";

const home = mkdtempSync(join(tmpdir(), "mw-dashboard-large-"));
let browser: DashboardBrowser;

beforeAll(async () => {
  browser = await DashboardBrowser.open(home);
});
afterAll(async () => {
  await browser?.close();
  rmSync(home, { recursive: true, force: true });
});

interface Opening {
  readonly wallMs: number;
  /** What the server and the page's own thread computed: unlike the time on the wall it says the same however busy the machine is. */
  readonly serverMs: number;
  readonly pageMs: number;
}

/** What is there when the page is of use: an element with a text. */
interface Sight {
  readonly selector: string;
  readonly text?: string;
}

/** Looks at every frame: a locator's own wait is half a second late at worst. */
async function seen(page: Page, { selector, text = "" }: Sight): Promise<void> {
  await page.waitForFunction(([within, wanted]) => [...document.querySelectorAll(within)].some(({ textContent }) => textContent?.includes(wanted)), [selector, text] as const, { polling: "raf" });
}

/** Says how long the page's own thread has computed, in milliseconds. */
async function computing(page: Page): Promise<() => Promise<number>> {
  const session = await page.context().newCDPSession(page);
  await session.send("Performance.enable", { timeDomain: "threadTicks" });
  return async () => {
    const { metrics } = await session.send("Performance.getMetrics");
    return 1_000 * (metrics.find(({ name }) => name === "TaskDuration")?.value ?? Infinity);
  };
}

/** Opens an address in a browser that has nothing of the page yet. */
async function open(path: string, sight: Sight): Promise<Opening> {
  const { page, complaints, close } = await browser.screen("/nothing/here");
  const computed = await computing(page);
  const [before, used] = [performance.now(), process.cpuUsage()];
  await page.goto(browser.link(path));
  await seen(page, sight);
  const wallMs = performance.now() - before;
  const { user, system } = process.cpuUsage(used);
  const pageMs = await computed();
  expect(complaints).toEqual([]);
  await close();
  return { wallMs, serverMs: (user + system) / 1_000, pageMs };
}

/** Twice: the first time the server reads the files. Printed as measured; asserted by what is computed, twice as much as promised, since processors differ. */
async function expectOpens(name: string, promiseMs: number, path: string, sight: Sight): Promise<void> {
  for (const nth of ["first", "second"] as const) {
    const { wallMs, serverMs, pageMs } = await open(path, sight);
    process.stdout.write(`${name}, ${nth} time: ${Math.round(wallMs)} ms, of which computed: server ${Math.round(serverMs)}, page ${Math.round(pageMs)} (promised: ${promiseMs} ms)\n`);
    expect(pageMs).toBeGreaterThan(0);
    expect(serverMs + pageMs, `${name}, ${nth} time`).toBeLessThan(2 * promiseMs);
  }
}

describe("a rollout", () => {
  it("of half a million tokens opens at its conversation, its trace and its tokens, and any of them can be gone to", async () => {
    const fixture = await writeRun({ home, tasks: 1, attempts: 1, seed: "tokens" });
    await fixture.close();
    const [large = ""] = fixture.groups[0]?.rollouts ?? [];
    await writeLongRollout(home, fixture.run, large as never, { calls: 250, tokens: 500_000, conversations: 5 });
    const views: Readonly<Record<string, Sight>> = { conversation: { selector: ".message", text: "You are an agent." }, tokens: { selector: ".tokens .t" } };
    for (const [view, sight] of Object.entries(views)) await expectOpens(`500,000 tokens, ${view}`, 2_000, `/rollouts/${large}/${view}`, sight);

    const { page, complaints, close } = await browser.screen(`/rollouts/${large}/tokens`);
    await page.locator(".tokens .t").first().waitFor();
    await page.getByRole("group", { name: "Tokens" }).evaluate((element) => element.scrollTo({ top: element.scrollHeight }));
    await page.waitForFunction(() => Number(/^(\d+):/.exec([...document.querySelectorAll(".tokens .t")].at(-1)?.getAttribute("title") ?? "")?.[1]) > 90_000);
    // Of a hundred thousand tokens only those in sight are in the document.
    expect(await page.locator(".tokens .t").count()).toBeLessThan(5_000);
    expect(complaints).toEqual([]);
    await close();
  });

  it("of five thousand events opens, and its timeline leads to each", async () => {
    const fixture = await writeRun({ home, tasks: 1, attempts: 1, seed: "events", unfinished: 1 });
    const [large] = fixture.groups[0]?.rollouts ?? [];
    if (large === undefined) throw new Error("there is one");
    const error = { code: "sandbox_failed", message: "the machine died", fix: null } as const;
    const tries = 1_000;
    const events: RunEvent[] = [];
    for (let nth = 1; nth < tries; nth++) events.push({ type: "rollout_try_failed", rollout: large, try: nth, outcome: "sandbox_error", error, cause: "failure" }, ...begin(large, nth + 1));
    await fixture.append([...events, ...end(large, tries, 1)]);
    await fixture.close();
    await writeLongRollout(home, fixture.run, large, { calls: 2_500, tokens: 50_000, conversations: 50 });
    const views: Readonly<Record<string, Sight>> = { events: { selector: ".eventrow", text: "admitted" }, commands: { selector: ".message", text: "output of step 1" } };
    for (const [view, sight] of Object.entries(views)) await expectOpens(`5,000 events, 5,000 calls and commands, ${view}`, 2_000, `/rollouts/${large}/${view}`, sight);

    const { page, complaints, close } = await browser.screen(`/rollouts/${large}/events`);
    await page.locator(".eventrow").nth(1).waitFor();
    expect(await page.locator(".eventrow").count()).toBeLessThan(100);
    await page.getByRole("group", { name: "Events" }).evaluate((element) => element.scrollTo({ top: element.scrollHeight }));
    await page.locator(".eventrow", { hasText: "recorded" }).waitFor();
    // A moment near the end of what was done leads to the commands and the words of then, which are far beyond the first page.
    const { commands } = await browser.get<{ readonly commands: readonly { readonly at: string }[] }>(`/v1/rollouts/${large}/commands?offset=2399&limit=1`);
    const t = Date.parse(commands[0]?.at ?? "");
    await page.goto(browser.link(`/rollouts/${large}/commands?t=${t}`));
    await page.locator(".message.at", { hasText: "output of step 2400" }).waitFor();
    await page.goto(browser.link(`/rollouts/${large}/conversation?t=${t}`));
    await page.locator(".message.at").waitFor();
    expect(complaints).toEqual([]);
    await close();
  });
});

describe("a run", () => {
  it("moves while it goes on, and takes two hundred events a second without stalling", async () => {
    const fixture = await writeRun({ home, tasks: 100, attempts: 8, unfinished: 800 });
    const { page, complaints, close } = await browser.screen(`/runs/${fixture.run}/rollouts`);
    await page.getByText("agent at work").first().waitFor();
    // How long the page computes between two handfuls of events, at worst: while it does, it is deaf.
    const computed = await computing(page);
    let [deafMs, before] = [0, await computed()];
    const all = fixture.groups.flatMap(({ rollouts }) => rollouts);
    for (let at = 0; at < all.length; at += 50) {
      await fixture.append(all.slice(at, at + 50).flatMap((rollout) => end(rollout, 1, 1)));
      await new Promise((resolve) => setTimeout(resolve, 250));
      const now = await computed();
      deafMs = Math.max(deafMs, now - before);
      before = now;
    }
    await fixture.append([{ type: "run_finished" }]);
    await page.waitForFunction(() => document.body.innerText.includes("800 / 800") && document.querySelector(".pill.good") !== null);
    await page.getByText("finished").first().waitFor();
    process.stdout.write(`live updates: the page was deaf for ${Math.round(deafMs)} ms at worst\n`);
    expect(deafMs).toBeLessThan(2_000);
    expect(complaints).toEqual([]);
    await close();
    await fixture.close();
  });

  it("of ten thousand rollouts opens, sorts and scrolls to its end", async () => {
    const fixture = await writeRun({ home, tasks: 1250, attempts: 8, seed: "big" });
    await fixture.close();
    // As `mw run` does at its end.
    await new LiveRun(home, fixture.run).keep();
    await expectOpens("10,000 rollouts", 1_000, `/runs/${fixture.run}/rollouts`, { selector: "a.tr" });
    await expectOpens("10,000 rollouts, overview", 1_000, `/runs/${fixture.run}`, { selector: "main", text: "pass@1" });
    const { page, complaints, close } = await browser.screen(`/runs/${fixture.run}/rollouts`);
    await page.getByText("10,000 / 10,000").first().waitFor();
    await page.getByRole("button", { name: "Reward" }).click();
    await page.getByRole("button", { name: /Reward ↑/ }).click();
    await page.waitForFunction(() => document.querySelector("a.tr")?.textContent?.includes("passed") === true);
    // Only what is in sight is in the document.
    expect(await page.locator("a.tr").count()).toBeLessThan(100);
    await page.getByRole("group", { name: "Rollouts" }).evaluate((element) => element.scrollTo({ top: element.scrollHeight }));
    await page.waitForFunction(() => document.querySelector('a.tr[data-row="9999"]')?.textContent?.includes("fixture/") === true);
    expect(complaints).toEqual([]);
    await close();
  });
});

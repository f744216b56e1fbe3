/** The dashboard in a real browser, over runs that `mw run` made. */
import { mkdtempSync, readdirSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { gzipSync } from "node:zlib";
import type { Page } from "playwright-core";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { DashboardBrowser, tooWide, violations } from "./browser.ts";
import { makeRealRuns, type RealRuns } from "../support/dashboard/real-runs.ts";

const place = mkdtempSync(join(tmpdir(), "mw-dashboard-"));
const home = join(place, "home");
let browser: DashboardBrowser;
let runs: RealRuns;

beforeAll(async () => {
  runs = await makeRealRuns(place, home);
  browser = await DashboardBrowser.open(home);
});
afterAll(async () => {
  await browser?.close();
  rmSync(place, { recursive: true, force: true });
});

interface Listed {
  readonly rollout: string;
  readonly group: string;
  readonly reward: number | null;
}

async function rolloutsOf(run: string): Promise<readonly Listed[]> {
  return (await browser.get<{ readonly rollouts: readonly Listed[] }>(`/v1/runs/${run}/rollouts`)).rollouts;
}

const text = async (page: Page, selector: string): Promise<string> => (await page.locator(selector).first().textContent()) ?? "";

describe("every page", () => {
  it.each([{ width: 1280, scheme: "light" }, { width: 400, scheme: "dark" }] as const)("opens without a complaint, is accessible, and fits $width pixels in the $scheme", async (options) => {
    const [rollout] = await rolloutsOf(runs.model);
    const of = `/rollouts/${rollout?.rollout}`;
    const pages: Readonly<Record<string, string>> = {
      "/runs": "List of runs",
      [`/runs/${runs.model}`]: "Reward over time",
      [`/runs/${runs.model}/rollouts`]: "Rollouts",
      [`/runs/${runs.model}/groups`]: "Groups",
      [`/runs/${runs.model}/failures`]: "Nothing has failed",
      [`/runs/${runs.model}/config`]: "test-model",
      [`/runs/${runs.model}/groups/${rollout?.group}`]: "Attempt 1",
      [`/compare?runs=${runs.model},${runs.oracle}`]: "pass@k",
      "/tasks": "greet/hello",
      [`/task?directory=${encodeURIComponent(join(place, "tasks/greet/hello"))}`]: "Write hello to /work/out.",
      [of]: "Let me look at the machine first.",
      [`${of}/commands`]: "cat /etc/hostname",
      [`${of}/changes`]: "/work/out",
      [`${of}/verdict`]: "checking /work/out",
      [`${of}/trace?call=1`]: "Response",
      [`${of}/tokens`]: "You work on a task",
      [`${of}/events`]: "recorded",
      [`${of}/files`]: "calls.jsonl",
    };
    const { page, complaints, close } = await browser.screen("/runs", options);
    const faults: string[] = [];
    for (const [path, expected] of Object.entries(pages)) {
      await page.goto(browser.link(path));
      await page.waitForFunction((wanted) => document.body.innerText.includes(wanted) || document.querySelector(`[aria-label="${wanted}"]`) !== null, expected);
      const over = await tooWide(page);
      if (over > 0) faults.push(`${path}: ${over} pixels too wide`);
      faults.push(...(await violations(page)).map((violation) => `${path}: ${violation}`));
    }
    expect(faults).toEqual([]);
    expect(complaints).toEqual([]);
    await close();
  });

  it("says what is gone, and leads back", async () => {
    const { page, close } = await browser.screen("/rollouts/ro00000000000000000000");
    await page.getByText("It is not there (any more)").waitFor();
    await page.goto(browser.link("/nothing/here"));
    await page.getByText("There is no such page").waitFor();
    await page.getByText("To the runs").click();
    await page.getByRole("heading", { name: "Runs" }).waitFor();
    await close();
  });
});

describe("a rollout", () => {
  it("shows tokens with what is trained, plays its terminal, scrubs, opens a call, and is marked", async () => {
    const [rollout] = await rolloutsOf(runs.model);
    const { page, complaints, close } = await browser.screen(`/rollouts/${rollout?.rollout}/tokens`);
    await page.locator(".tokens .t").first().waitFor();
    expect(await text(page, ".card:has-text('The account of tokens')")).toMatch(/[\d,]+ sampled = [\d,]+ trained \+ 0 dropped/);
    const title = await page.locator(".tokens .t").first().getAttribute("title");
    expect(title).toMatch(/^0: id \d+, not trained here$/);

    await page.getByRole("link", { name: "Terminal" }).click();
    await page.locator(".xterm-rows").waitFor();
    await page.waitForFunction(() => document.querySelector(".xterm-rows")?.textContent?.includes("399") === true);

    await page.getByRole("slider", { name: "Time in the rollout" }).focus();
    await page.keyboard.press("ArrowRight");
    await page.waitForFunction(() => new URL(location.href).searchParams.has("t"));

    await page.getByRole("link", { name: /^Trace/ }).click();
    await page.locator("button.tracerow").first().click();
    await page.getByText("\"messages\"").first().waitFor();
    await page.getByRole("button", { name: "Close the call" }).click();

    await page.getByRole("button", { name: "Star" }).click();
    await page.waitForFunction(() => document.querySelector("button[aria-label=Star]")?.getAttribute("aria-pressed") === "true");
    const lines = readFileSync(join(home, "runs", runs.model, "annotations.jsonl"), "utf8").trim().split("\n");
    expect(JSON.parse(lines[0] ?? "")).toMatchObject({ target: rollout?.rollout, mark: "star" });
    expect(complaints).toEqual([]);
    await close();
  });

  it("shows its calls as a graph with what a sub-agent did and what a summary replaced, and leads from one conversation to another", async () => {
    const [rollout] = await rolloutsOf(runs.team);
    const { page, complaints, close } = await browser.screen(`/rollouts/${rollout?.rollout}/trace`);
    await page.locator("button.tracerow").nth(3).waitFor();
    expect(await page.locator("button.tracerow").evaluateAll((rows) => rows.map((row) => row.children[2]?.textContent))).toEqual(["main", "subagent", "compaction", "main ↺"]);
    await page.goto(browser.link(`/rollouts/${rollout?.rollout}`));
    await page.getByText("Then that is all.").waitFor();
    expect(await page.getByText("The word is hello.").count()).toBe(1);
    expect(await page.getByText("Find out which word is wanted.").count()).toBe(1);
    await page.getByRole("button", { name: "began thread 1 (subagent)" }).click();
    await page.getByText("You help.").waitFor();
    expect(await page.locator("article.message").evaluateAll((messages) => messages.map((message) => message.getAttribute("aria-label")))).toEqual(["system 1", "user 2", "agent 3"]);
    expect(await violations(page)).toEqual([]);
    expect(complaints).toEqual([]);
    await close();
  });

  it("shows what an agent wrote as text, whatever it is and wherever it stands", async () => {
    const [rollout] = await rolloutsOf(runs.hostile);
    const { page, complaints, close } = await browser.screen(`/rollouts/${rollout?.rollout}`);
    const views = ["conversation", "commands", "terminal", "changes", "verdict", "trace?call=1", "tokens", "events", "files"].map((view) => `/rollouts/${rollout?.rollout}/${view}`);
    const around = ["/runs", "/tasks", `/task?directory=${encodeURIComponent(join(place, "tasks/hostile"))}`, `/compare?runs=${runs.hostile},${runs.oracle}`, ...["overview", "rollouts", "groups", "failures", "config", "search?q=owned", `groups/${rollout?.group}`].map((view) => `/runs/${runs.hostile}/${view}`)];
    // Where the task's own name is shown.
    const named = new Set(["/tasks", ...around.filter((path) => /task\?|compare|\/rollouts|\/groups/.test(path)), ...views]);
    for (const path of [...views, ...around]) {
      await page.goto(browser.link(path));
      await page.waitForFunction((shown) => document.querySelector(".skeleton") === null && (document.querySelector("main")?.textContent ?? "") !== "" && (!shown || document.body.innerText.includes("<img src=x onerror=alert(1)>⟨U+202E⟩gnp⟨U+202C⟩")), named.has(path));
      if (path.includes("/conversation")) {
        await page.waitForFunction(() => document.querySelector(".message.assistant .out")?.textContent?.includes("<script>") === true);
        const shown = await text(page, ".message.assistant .out");
        // Markup is text, what would reorder or hide text is named, and no control character is left.
        expect(shown).toContain("<img src=x onerror=");
        expect(shown).toContain("⟨U+202E⟩esrever");
      }
      if (path.includes("/terminal")) await page.waitForFunction(() => document.querySelector(".xterm-rows")?.textContent?.includes("yyyy") === true);
      if (path.includes("/changes")) {
        await page.getByText("/work/<b>name").waitFor();
        await page.getByText("/work/\ufffd⟨U+202E⟩name").waitFor();
      }
      expect(await page.evaluate(() => document.querySelectorAll("main img, main script, main b > img, main iframe").length), path).toBe(0);
      // In attributes, too, which are shown as tips.
      const told = await page.evaluate(() => [document.body.innerText, document.title, ...[...document.querySelectorAll("[title], [aria-label]")].map((element) => `${element.getAttribute("title") ?? ""} ${element.getAttribute("aria-label") ?? ""}`)].join("\n"));
      // oxlint-disable-next-line no-control-regex -- that there are none is what is tested
      expect(told.match(/.{0,60}[\u0000-\u0008\u000b\u000c\u000e-\u001f\u202a-\u202e\u2066-\u2069].{0,20}/u)?.[0], path).toBeUndefined();
      expect(await page.title(), path).not.toContain("owned");
      expect(await tooWide(page), path).toBeLessThanOrEqual(0);
    }
    expect(complaints).toEqual([]);
    await close();
  });
});

describe("a run", () => {
  it("finds text in what was said and done, and leads there", async () => {
    const { page, complaints, close } = await browser.screen(`/runs/${runs.model}/search`);
    await page.getByRole("searchbox", { name: "Find text" }).fill("no newline at its end");
    await page.getByText(/all 12 read/).waitFor();
    // Who speaks, when, and the ids of calls are on every message, and nobody said them.
    for (const unsaid of ["assistant", "call_call"]) {
      await page.getByRole("searchbox", { name: "Find text" }).fill(unsaid);
      await page.getByText("Nobody said that").waitFor();
      await page.getByRole("searchbox", { name: "Find text" }).fill("no newline at its end");
      await page.locator("mark").first().waitFor();
    }
    await page.getByText(/all 12 read/).waitFor();
    await page.locator("mark").first().click();
    await page.waitForFunction(() => document.querySelector(".message mark")?.textContent === "no newline at its end");
    expect(complaints).toEqual([]);
    await close();
  });

  it("saves what is shown: the file is what the page lists, and nothing else", async () => {
    const [first] = await rolloutsOf(runs.model);
    const { page, complaints, close } = await browser.screen(`/runs/${runs.model}/rollouts?outcome=passed&sort=task&order=desc`);
    /** Name and bytes of what a button saves. */
    const saved = async (button: string | RegExp): Promise<{ readonly name: string; readonly bytes: Buffer }> => {
      const [download] = await Promise.all([page.waitForEvent("download"), page.getByRole("button", { name: button }).first().click()]);
      return { name: download.suggestedFilename(), bytes: readFileSync(await download.path()) };
    };
    const open = (path: string, shows: string): Promise<void> => page.goto(browser.link(path)).then(() => page.getByText(shows).first().waitFor());

    await page.locator("a.tr").first().waitFor();
    const hrefs = await page.locator("a.tr").evaluateAll((rows) => rows.map((row) => row.getAttribute("href")?.split("/").at(-1)));
    const listed = (await rolloutsOf(runs.model)).filter(({ reward }) => reward === 1).length;
    expect(hrefs.length).toBe(listed);
    const csv = await saved("CSV");
    expect(csv.name).toBe(`${runs.model}.csv`);
    const [head = "", ...rows] = csv.bytes.toString().trim().split("\r\n");
    const column = head.split(",").indexOf("rollout");
    expect(rows.map((row) => row.split(",")[column])).toEqual(hrefs);
    const lines = (await saved("JSON lines")).bytes.toString().trim().split("\n");
    expect(lines.map((line) => (JSON.parse(line) as { readonly rollout: string }).rollout)).toEqual(hrefs);

    // Pages that show documents of the server save these.
    await open(`/runs/${runs.model}/groups/${first?.group}`, "Attempt 1");
    const group = await saved("Save");
    const document = JSON.parse(group.bytes.toString()) as { readonly attempts: readonly { readonly row: { readonly reward: number } }[] };
    expect([group.name, document]).toEqual([`${first?.group}.json`, await browser.get(`/v1/runs/${runs.model}/groups/${first?.group}`)]);
    await open("/tasks", "greet/hello");
    expect(JSON.parse((await saved("Save")).bytes.toString())).toEqual((await browser.get<{ readonly tasks: unknown }>("/v1/tasks")).tasks);
    await open(`/compare?runs=${runs.model},${runs.oracle}`, "Mean reward by task");
    const compared = JSON.parse((await saved("Save")).bytes.toString()) as readonly { readonly report: unknown; readonly statistics: unknown }[];
    expect(compared).toEqual(await Promise.all([runs.model, runs.oracle].map(async (run) => ({ report: await browser.get(`/v1/runs/${run}`), statistics: await browser.get(`/v1/runs/${run}/statistics`) }))));
    await open(`/runs/${runs.model}/search?q=${encodeURIComponent("no newline at its end")}`, "all 12 read");
    const hits = JSON.parse((await saved("Save")).bytes.toString()) as readonly unknown[];
    expect(hits.length).toBe(await page.locator("main mark").count());

    // Files, byte for byte.
    await page.goto(browser.link(`/rollouts/${first?.rollout}/files?path=instruction.md`));
    const file = await saved(/^Save \(/);
    expect([file.name, file.bytes]).toEqual(["instruction.md", readFileSync(join(home, "runs", runs.model, "rollouts", first?.rollout ?? "", "instruction.md"))]);
    await page.goto(browser.link(`/rollouts/${first?.rollout}/trace?call=1`));
    await page.getByText("\"messages\"").first().waitFor();
    const call = await saved(/^Save \(/);
    expect(JSON.parse(call.bytes.toString())).toMatchObject({ messages: expect.anything() as unknown });
    expect(complaints).toEqual([]);
    await close();
  });

  it("says what it cost, which is what its tokens make at its prices, and nothing of money where none were given", async () => {
    const rows = (await browser.get<{ readonly rollouts: readonly { readonly promptTokens: number; readonly completionTokens: number }[] }>(`/v1/runs/${runs.model}/rollouts`)).rollouts;
    // How many tokens there are differs from run to run. No multiple of these prices is a half cent, which two ways to round a sum could tell apart.
    const dollars = rows.reduce((sum, { promptTokens, completionTokens }) => sum + (promptTokens * 96 + completionTokens * 384) / 1e6, 0).toFixed(2);
    const { page, complaints, close } = await browser.screen(`/runs/${runs.model}`);
    await page.locator(".kpi", { hasText: "Cost" }).getByText(`$${dollars}`, { exact: true }).waitFor();
    await page.locator('section.card[aria-label="Cost"]').getByText(/prompts \$.* · sampled \$/).waitFor();
    expect(await text(page, 'section.card[aria-label="Time by phase"] .barrow:has-text("$")')).toContain(`$${dollars}`);
    for (const view of ["rollouts", "groups"]) {
      await page.goto(browser.link(`/runs/${runs.model}/${view}`));
      await page.locator("a.tr", { hasText: "$" }).first().waitFor();
      // Sorted by the server, whose first row is the dearest.
      for (const order of ["asc", "desc"]) {
        await page.getByRole("button", { name: /^Cost/ }).click();
        await page.waitForURL((url) => url.searchParams.get("sort") === "cost" && (url.searchParams.get("order") ?? "asc") === order);
      }
      const { [view]: [dearest] = [] } = await browser.get<Readonly<Record<string, readonly { readonly rollout?: string; readonly group?: string }[]>>>(`/v1/runs/${runs.model}/${view}?sort=cost&order=desc`);
      await page.locator(`a.tr[data-row="0"][href$="/${dearest?.rollout ?? dearest?.group}"]`).waitFor();
    }
    await page.goto(browser.link("/runs"));
    await page.getByRole("columnheader", { name: "Cost" }).waitFor();
    const costs = page.locator("tbody tr", { hasText: "$" });
    expect([await costs.count(), await costs.first().innerText()]).toEqual([1, expect.stringContaining(`$${dollars}`)]);
    await page.goto(browser.link(`/runs/${runs.oracle}`));
    await page.getByText("Machine time").first().waitFor();
    await page.locator('section.card[aria-label="By family"]').waitFor();
    expect(await page.evaluate(() => document.querySelector("main")?.innerText)).not.toContain("$");
    expect(complaints).toEqual([]);
    await close();
  });

  it("is led by keys: to a row, into it, back, and on", async () => {
    const { page, close } = await browser.screen(`/runs/${runs.model}/rollouts`);
    await page.locator("a.tr").first().waitFor();
    await page.keyboard.press("j");
    await page.keyboard.press("j");
    const second = await page.locator("a.tr.cursor").getAttribute("href");
    await page.keyboard.press("Enter");
    await page.waitForURL(`**${second}`);
    await page.getByRole("slider", { name: "Time in the rollout" }).waitFor();
    await page.keyboard.press("]");
    await page.waitForFunction((before) => location.pathname.startsWith("/ui/rollouts/") && !location.pathname.startsWith(before ?? ""), second);
    await page.keyboard.press("?");
    await page.getByRole("dialog", { name: "Keys" }).waitFor();
    await page.keyboard.press("Escape");
    await page.keyboard.press("g");
    await page.keyboard.press("r");
    await page.waitForURL("**/ui/runs");
    await close();
  });
});

describe("the built page", () => {
  it("has at most 300 KB compressed before a terminal is opened, and nothing from elsewhere", () => {
    const names = readdirSync("dist-dashboard", { recursive: true, encoding: "utf8" }).filter((name) => /\.(js|css|html|svg)$/.test(name));
    const sizes = names.map((name) => ({ name, bytes: gzipSync(readFileSync(join("dist-dashboard", name))).length }));
    const terminal = sizes.filter(({ name }) => name.includes("playback") || name.includes("terminal"));
    expect(terminal.length).toBeGreaterThan(0);
    const total = sizes.filter((one) => !terminal.includes(one)).reduce((sum, { bytes }) => sum + bytes, 0);
    expect(total).toBeGreaterThan(50_000);
    expect(total).toBeLessThan(300_000);
    for (const name of names.filter((one) => one.endsWith(".html"))) expect(readFileSync(join("dist-dashboard", name), "utf8")).not.toMatch(/(?:src|href)="(?!\/ui\/)/);
  });
});

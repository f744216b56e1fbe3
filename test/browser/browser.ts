/** A real browser on the dashboard: Debian's Chromium, without a screen. What a page complains about is kept. */
import { source as axeSource } from "axe-core";
import { chromium, type Browser, type Page } from "playwright-core";
import { systemRuntime } from "../../src/core/runtime.ts";
import { openReader, type Reader } from "../../src/server/index.ts";

export interface Screen {
  readonly page: Page;
  /** Errors of scripts and refusals of the page's policy, in order. */
  readonly complaints: string[];
  close(): Promise<void>;
}

/** What serves the page. */
type Site = Pick<Reader, "url" | "fragment" | "close">;

export class DashboardBrowser {
  readonly #site: Site;
  readonly #browser: Browser;

  private constructor(site: Site, browser: Browser) {
    this.#site = site;
    this.#browser = browser;
  }

  /** Over a data directory, as `mw show --web` has it. */
  static async open(home: string): Promise<DashboardBrowser> {
    return DashboardBrowser.at(await openReader({ home, version: "0.0.0-test", runtime: systemRuntime, env: {}, log: () => undefined }));
  }

  /** Over a server that is there; its `close` is called at the end. */
  static async at(site: Site): Promise<DashboardBrowser> {
    // Tests run as root, where Chromium's own sandbox does not.
    return new DashboardBrowser(site, await chromium.launch({ executablePath: "/usr/bin/chromium", args: ["--no-sandbox", "--disable-dev-shm-usage"] }));
  }

  async screen(path: string, options: { readonly width?: number; readonly scheme?: "light" | "dark" } = {}): Promise<Screen> {
    const context = await this.#browser.newContext({ viewport: { width: options.width ?? 1280, height: 900 }, colorScheme: options.scheme ?? "light" });
    const page = await context.newPage();
    // Others are at work on the machine.
    page.setDefaultTimeout(90_000);
    const complaints: string[] = [];
    page.on("pageerror", (error) => complaints.push(error.message));
    page.on("console", (message) => {
      if (message.type() === "error" || message.type() === "warning") complaints.push(message.text());
    });
    await page.goto(path.startsWith("http:") ? path : this.link(path));
    return { page, complaints, close: () => context.close() };
  }

  link(path: string): string {
    return `${this.#site.url}/ui${path}${this.#site.fragment}`;
  }

  /** A document of the read API. */
  async get<T>(path: string): Promise<T> {
    const response = await fetch(`${this.#site.url}${path}`);
    if (!response.ok) throw new Error(`GET ${path}: ${response.status} ${await response.text()}`);
    return (await response.json()) as T;
  }

  async close(): Promise<void> {
    await this.#browser.close();
    await this.#site.close();
  }
}

/** What axe finds, by rule and place. Colours are judged by axe too, so both themes are looked at. */
export async function violations(page: Page): Promise<readonly string[]> {
  // The page's policy lets no script in but its own; the browser's debugger does.
  await page.evaluate(axeSource);
  return page.evaluate(async () => {
    const { axe } = globalThis as unknown as { axe: { run(context: Document, options: unknown): Promise<{ violations: { id: string; nodes: { html: string; failureSummary: string }[] }[] }> } };
    const { violations: found } = await axe.run(document, { runOnly: ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "best-practice"] });
    return found.flatMap(({ id, nodes }) => nodes.slice(0, 2).map(({ html, failureSummary }) => `${id}: ${html.slice(0, 200)} ${failureSummary.slice(0, 200)}`));
  });
}

/** How much wider than the screen it is, in pixels. */
export function tooWide(page: Page): Promise<number> {
  return page.evaluate(() => document.documentElement.scrollWidth - document.documentElement.clientWidth);
}

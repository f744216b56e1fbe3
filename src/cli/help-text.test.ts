import { describe, expect, it } from "vitest";
import { asksForHelp, fitHelp } from "./help-text.ts";

describe("fitHelp", () => {
  it("keeps to the columns, below the description", () => {
    const line = "  -n [--attempts]  a description that is a good deal longer than the terminal is wide                      [default = false]";
    expect(fitHelp(line, 50)).toBe(["  -n [--attempts]  a description that is a good", "                   deal longer than the terminal", "                   is wide"].join("\n"));
  });

  it("keeps defaults that say something, and lines that fit", () => {
    expect(fitHelp("     [--limit]  only the newest n          [default = 1000]\nFLAGS", 60)).toBe("     [--limit]  only the newest n [default = 1000]\nFLAGS");
  });

  it("leaves a word that is longer than a line whole", () => {
    const url = `http://${"x".repeat(80)}`;
    expect(fitHelp(`see ${url} for more`, 40)).toBe(`see\n${url}\nfor more`);
  });
});

describe("asksForHelp", () => {
  it("does not take a sandbox command's flags for its own", () => {
    expect(asksForHelp(["sandbox", "run", "host", "--", "ls", "--help"])).toBe(false);
    expect(asksForHelp(["run", "--help"])).toBe(true);
    expect(asksForHelp([])).toBe(true);
  });
});

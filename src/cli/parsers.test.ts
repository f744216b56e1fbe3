import { describe, expect, it } from "vitest";
import { formatDollars } from "./output.ts";
import { parsePrices } from "./parsers.ts";

describe("prices", () => {
  it("are read in any order; cached tokens cost as others do where nobody says otherwise", () => {
    expect(parsePrices("output=10, input=1.25")).toEqual({ input: 1.25, cached: 1.25, output: 10, machine: 0 });
    expect(parsePrices("input=1,cached=.1,output=2,machine=0.05")).toEqual({ input: 1, cached: 0.1, output: 2, machine: 0.05 });
    expect(parsePrices("machine=0.05")).toEqual({ input: 0, cached: 0, output: 0, machine: 0.05 });
  });

  it.each(["", "input=1", "output=1", "cached=1,machine=1", "input=1,input=2,output=3", "input=-1,output=1", "input=1e3,output=1", "prompt=1,output=1", "input=1,output=NaN"])("refuses %j", (text) => {
    expect(() => parsePrices(text)).toThrow(/expected prices such as input=/);
  });

  it("are told with two digits that say something", () => {
    expect([0, 1234.5, 0.1, 0.0421, 0.00000123].map(formatDollars)).toEqual(["$0", "$1,234.50", "$0.10", "$0.042", "$0.0000012"]);
  });
});

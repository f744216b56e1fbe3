#!/bin/bash
set -euo pipefail
cat > /app/ranges.js <<'JS'
"use strict";

const NUMBER = "(0|[1-9][0-9]*)";
const IDENTIFIER = "(?:0|[1-9][0-9]*|[0-9]*[A-Za-z-][0-9A-Za-z-]*)";
const FULL = new RegExp(`^${NUMBER}\\.${NUMBER}\\.${NUMBER}(?:-(${IDENTIFIER}(?:\\.${IDENTIFIER})*))?$`);
const PARTIAL = new RegExp(`^${NUMBER}(?:\\.${NUMBER})?$`);

function wrong(kind, text) {
  return new TypeError(`not a ${kind}: ${String(text)}`);
}

function numbers(texts) {
  const values = texts.filter((text) => text !== undefined).map(Number);
  return values.every(Number.isSafeInteger) ? values : null;
}

function full(text) {
  const match = FULL.exec(text);
  const parts = match && numbers(match.slice(1, 4));
  return parts ? { numbers: parts, pre: match[4] === undefined ? null : match[4].split(".") } : null;
}

function version(text) {
  const parsed = typeof text === "string" ? full(text) : null;
  if (parsed === null) throw wrong("version", text);
  return parsed;
}

const order = (a, b) => (a < b ? -1 : a > b ? 1 : 0);

function compareIdentifiers(a, b) {
  const [x, y] = [/^[0-9]+$/.test(a), /^[0-9]+$/.test(b)];
  if (x && y) return order(a.length, b.length) || order(a, b);
  return x ? -1 : y ? 1 : order(a, b);
}

function compareParsed(a, b) {
  for (let i = 0; i < 3; i++) if (a.numbers[i] !== b.numbers[i]) return order(a.numbers[i], b.numbers[i]);
  if (a.pre === null || b.pre === null) return order(a.pre === null ? 1 : 0, b.pre === null ? 1 : 0);
  for (let i = 0; i < Math.min(a.pre.length, b.pre.length); i++) {
    const result = compareIdentifiers(a.pre[i], b.pre[i]);
    if (result !== 0) return result;
  }
  return order(a.pre.length, b.pre.length);
}

const at = (parts, pre = null) => ({ numbers: [parts[0], parts[1] ?? 0, parts[2] ?? 0], pre });
/** The version in which the number at this place is one more. */
const next = (parts, place) => at([...parts.slice(0, place), parts[place] + 1]);

/** Lower end (inclusive unless `above`), upper end (exclusive unless `upto`), and the version whose prereleases are let in. */
function term(text) {
  if (text === "*") return {};
  const [, operator, rest] = /^(>=|<=|>|<|=|~|\^)?(.*)$/s.exec(text);
  const exact = full(rest);
  const match = exact === null ? PARTIAL.exec(rest) : null;
  const parts = exact?.numbers ?? (match && numbers(match.slice(1)));
  if (!parts) return null;
  const low = at(parts, exact?.pre ?? null);
  const after = next(parts, parts.length - 1);
  const written = exact?.pre ? exact : undefined;
  switch (operator) {
    case ">=": return { low, written };
    case "<": return { high: low, written };
    case ">": return exact ? { low, above: true, written } : { low: after };
    case "<=": return exact ? { high: low, upto: true, written } : { high: after };
    case "~": return { low, high: next(parts, Math.min(1, parts.length - 1)), written };
    case "^": {
      const place = parts.findIndex((number) => number !== 0);
      return { low, high: next(parts, place < 0 ? parts.length - 1 : place), written };
    }
    default: return exact ? { low, high: low, upto: true, written } : { low, high: after };
  }
}

function range(text) {
  const parsed = typeof text !== "string" ? [null] : text.split("||").map((alternative) => {
    const words = alternative.replace(/^ +| +$/g, "").split(/ +/);
    const terms = words.map(term);
    return terms.includes(null) ? null : terms;
  });
  if (parsed.includes(null)) throw wrong("range", text);
  return parsed;
}

function holds({ low, above, high, upto }, candidate) {
  if (low) {
    const result = compareParsed(candidate, low);
    if (result < 0 || (result === 0 && above)) return false;
  }
  if (high) {
    const result = compareParsed(candidate, high);
    if (result > 0 || (result === 0 && !upto)) return false;
  }
  return true;
}

function inside(candidate, alternatives) {
  return alternatives.some((terms) => terms.every((item) => holds(item, candidate)) &&
    (candidate.pre === null || terms.some(({ written }) => written && written.numbers.every((number, i) => number === candidate.numbers[i]))));
}

function compare(a, b) {
  return compareParsed(version(a), version(b));
}

function satisfies(text, rangeText) {
  return inside(version(text), range(rangeText));
}

function best(versions, rangeText) {
  const alternatives = range(rangeText);
  let found = null;
  for (const text of versions) {
    const parsed = version(text);
    if (inside(parsed, alternatives) && (found === null || compareParsed(parsed, found.parsed) > 0)) found = { text, parsed };
  }
  return found === null ? null : found.text;
}

module.exports = { compare, satisfies, best };
JS
cat > /app/cli.js <<'JS'
"use strict";
const { readFileSync } = require("node:fs");
const { compare, satisfies } = require("./ranges.js");

try {
  const range = process.argv[2];
  satisfies("0.0.0", range);
  const versions = readFileSync(0, "utf8").split(/\r?\n/).filter((line) => line.trim() !== "");
  const found = versions.filter((version) => satisfies(version, range)).sort(compare);
  process.stdout.write(found.map((version) => `${version}\n`).join(""));
} catch (error) {
  process.stderr.write(`${error.message}\n`);
  process.exitCode = 2;
}
JS
cat > /app/ranges.test.js <<'JS'
"use strict";
const test = require("node:test");
const assert = require("node:assert");
const { compare, satisfies, best } = require("./ranges.js");

const inside = [["1.2.3", "^1.2"], ["0.2.9", "~0.2.3"], ["1.3.0-beta.2", ">=1.3.0-alpha"], ["2.0.0", ">1"], ["1.9.9", "<=1"], ["5.0.0", "1 || >=4 <6"], ["0.0.3", "^0.0.3"], ["7.1.0", "*"]];
const outside = [["2.0.0", "^1.2"], ["1.3.0-beta.2", ">=1.2.0"], ["1.2.9", ">1.2"], ["0.0.4", "^0.0.3"]];
for (const [version, range] of inside) test(`${version} is in ${range}`, () => assert.ok(satisfies(version, range)));
for (const [version, range] of outside) test(`${version} is not in ${range}`, () => assert.ok(!satisfies(version, range)));
test("numbers before words", () => assert.strictEqual(compare("1.0.0-2", "1.0.0-a"), -1));
test("the greatest", () => assert.strictEqual(best(["1.0.0", "1.10.0", "1.9.0"], "1"), "1.10.0"));
test("wrong ranges", () => assert.throws(() => satisfies("1.0.0", "> 1"), TypeError));
JS
cd /app && node --test ranges.test.js > /dev/null

import * as fc from "fast-check";
import { expect, test } from "vitest";
import { contains, parseAddress, parseRange, specialRange } from "./addresses.ts";
import { normalHost, parseHostRule, parseHostRules } from "./host-rules.ts";
import { readServerName } from "./server-name.ts";

test.each([
  ["example.com", "example.com", 443, true],
  ["Example.COM.", "example.com", 80, true],
  ["example.com", "example.com", 8080, false],
  ["example.com", "www.example.com", 443, false],
  ["*.example.com", "a.b.example.com", 443, true],
  ["*.example.com", "example.com", 443, false],
  ["*.example.com", "evilexample.com", 443, false],
  ["example.com:8443", "example.com", 8443, true],
  ["example.com:8443", "example.com", 443, false],
  ["example.com:*", "example.com", 22, true],
  ["*", "anything.test", 443, true],
  ["*", "anything.test", 22, false],
  ["b\u00fccher.example", "xn--bcher-kva.example", 443, true],
  ["10.0.0.0/8", "intern.example", 443, false],
] as const)("%s and %s:%i", (rule, name, port, admitted) => {
  expect(parseHostRules([rule]).admitsName(name, port)).toBe(admitted);
});

test.each([
  ["10.0.0.0/8", "10.1.2.3", true],
  ["10.0.0.0/8", "11.1.2.3", false],
  ["0.0.0.0/0", "8.8.8.8", true],
  // A list that names everything names nothing inside.
  ["0.0.0.0/0", "10.1.2.3", false],
  ["0.0.0.0/0", "127.0.0.1", false],
  ["*", "8.8.8.8", true],
  ["*", "169.254.169.254", false],
  ["169.254.169.254", "169.254.169.254", true],
  ["127.0.0.1", "127.0.0.2", false],
  ["[2001:4860:4860::8888]", "2001:4860:4860::8888", true],
  ["2001:4860::/32", "2001:4860:4860::8888", true],
  ["::/0", "fd00:ec2::254", false],
  ["fd00::/8", "fd00:ec2::254", true],
  ["127.0.0.1", "::ffff:127.0.0.1", true],
] as const)("%s and the address %s", (rule, text, admitted) => {
  const address = parseAddress(text);
  if (address === null) throw new Error("no address");
  expect(parseHostRules([rule]).admitsAddress(address, 443)).toBe(admitted);
});

test.each([["", /is none/], ["http://a", /is a URL/], ["a/b", /characters/], ["a b", /characters/], ["a:0", /port/], ["a:99999", /port/], ["a:b", /port/], ["*.*.a", /no host name/], ["a.*", /no host name/], ["u@a", /characters/], ["10.0.0.1/8", /range/], ["10.0.0.0/33", /range/], ["2130706433", /odd spelling of 127\.0\.0\.1/], ["0x7f.1", /odd spelling/], ["..", /no host name/], ["a%2eb", /characters/]])("%j is refused", (rule, why) => {
  expect(() => parseHostRule(rule)).toThrow(why);
  expect(() => parseHostRule(rule)).toThrow(expect.objectContaining({ code: "invalid_input" }));
});

test("an address is read as the kernel does, in every spelling of IPv6", () => {
  fc.assert(
    fc.property(fc.ipV6(), (text) => {
      const address = parseAddress(text);
      expect(address).not.toBeNull();
      if (address?.family !== 6) return;
      const words = Array.from({ length: 8 }, (_, i) => ((address.value >> BigInt(16 * (7 - i))) & 0xffffn).toString(16));
      expect(parseAddress(words.join(":"))).toEqual(address);
      // The platform's own reading.
      expect(new URL(`http://[${text}]/`).hostname).toBe(new URL(`http://[${words.join(":")}]/`).hostname);
    }),
  );
});

test("every IPv4 address hidden in IPv6 is as special as it is", () => {
  fc.assert(
    fc.property(fc.ipV4(), (text) => {
      const plain = parseAddress(text);
      for (const prefix of ["::ffff:", "64:ff9b::"]) expect(parseAddress(`${prefix}${text}`)).toEqual(plain);
      // 6to4 is none of the internet at all.
      expect(plain).not.toBeNull();
    }),
  );
  for (const text of ["0.0.0.0", "10.255.255.255", "100.64.0.1", "127.9.9.9", "169.254.0.1", "172.31.0.1", "192.168.255.255", "198.19.0.1", "224.0.0.1", "255.255.255.255", "::", "::1", "fc00::1", "fe80::1", "ff02::1", "2002:a9fe:a9fe::", "2001::1", "5f00::1", "::127.0.0.1", "64:ff9b:1::1"]) {
    const address = parseAddress(text);
    expect(address === null ? null : specialRange(address), text).not.toBeNull();
  }
  for (const text of ["1.1.1.1", "172.32.0.1", "100.63.255.255", "2606:4700::1111"]) {
    const address = parseAddress(text);
    expect(address === null ? undefined : specialRange(address), text).toBeNull();
  }
});

test("ranges hold what their prefix says", () => {
  const range = parseRange("192.0.2.128/25");
  const inside = parseAddress("192.0.2.200");
  const outside = parseAddress("192.0.2.127");
  if (range === null || inside === null || outside === null) throw new Error("not read");
  expect([contains(range, inside), contains(range, outside)]).toEqual([true, false]);
  for (const text of ["::ffff:10.0.0.0/104", "10.0.0.0/8/8", "10.0.0/8", "fe80::1%lo"]) expect(parseRange(text), text).toBeNull();
});

test("host names: one spelling each", () => {
  expect(["A.B.", "a.b", "A.b"].map(normalHost)).toEqual(["a.b", "a.b", "a.b"]);
  expect(["127.1", "0x7f000001", "2130706433", "0177.0.0.1"].map(normalHost)).toEqual(Array.from({ length: 4 }, () => "127.0.0.1"));
  for (const text of ["", ".", "a..b", ".a", "a".repeat(64), `${"a.".repeat(130)}a`]) expect(normalHost(text), text).toBeNull();
});

test("the first message of TLS: any bytes are read, waited for or refused, and never more is waited for than there can be", () => {
  fc.assert(
    fc.property(fc.uint8Array({ maxLength: 400 }), fc.boolean(), (bytes, asHello) => {
      const data = asHello ? Buffer.concat([Buffer.from([22, 3, 1, 0, Math.min(255, bytes.length), 1, 0, 0, Math.max(0, Math.min(255, bytes.length) - 4)]), bytes]) : Buffer.from(bytes);
      expect(["partial", "read", "refused"]).toContain(readServerName(data).kind);
    }),
    { numRuns: 2000 },
  );
  expect(readServerName(Buffer.concat([Buffer.from([22, 3, 1, 0x40, 0]), Buffer.alloc(40_000)])).kind).toBe("refused");
});

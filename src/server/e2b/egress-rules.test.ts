import { expect, test } from "vitest";
import { defaultNetwork } from "./egress-rules.ts";

test("the network that the server's environment gives to sandboxes", () => {
  expect(defaultNetwork({})).toEqual({ network: "none" });
  expect(defaultNetwork({ MW_E2B_NETWORK: "" })).toEqual({ network: "none" });
  expect(defaultNetwork({ MW_E2B_NETWORK: "public" })).toEqual({ network: "public" });
  const listed = { network: "allowlist", allow: ["pypi.org", "*.pythonhosted.org", "10.2.0.0/16"] };
  expect(defaultNetwork({ MW_E2B_NETWORK: "allowlist", MW_E2B_ALLOW: "pypi.org, *.pythonhosted.org 10.2.0.0/16" })).toEqual(listed);
  expect(defaultNetwork({ MW_E2B_ALLOW: "pypi.org,*.pythonhosted.org,10.2.0.0/16" })).toEqual(listed);
});

test("what makes no sense there is said when the server starts", () => {
  expect(() => defaultNetwork({ MW_E2B_NETWORK: "everything" })).toThrow(/MW_E2B_NETWORK is "everything"/);
  expect(() => defaultNetwork({ MW_E2B_NETWORK: "allowlist" })).toThrow(/MW_E2B_ALLOW names no host/);
  expect(() => defaultNetwork({ MW_E2B_NETWORK: "none", MW_E2B_ALLOW: "pypi.org" })).toThrow(/MW_E2B_NETWORK is none/);
  expect(() => defaultNetwork({ MW_E2B_ALLOW: "https://pypi.org" })).toThrow(/is a URL/);
});

import { defineConfig } from "vitest/config";

const soak = process.env["MW_SOAK"] === "1";

/** Plain tests; `test/soak` holds the long ones, run with `npm run test:soak`. */
export default defineConfig({
  test: {
    include: soak ? ["test/soak/**/*.test.ts"] : ["src/**/*.test.ts", "test/**/*.test.ts"],
    exclude: soak ? [] : ["test/soak/**"],
    // Machines are real: two files at once fill two cores.
    maxWorkers: 2,
    testTimeout: soak ? 3_600_000 : 60_000,
    hookTimeout: 120_000,
    globalSetup: ["test/support/global-setup.ts"],
  },
});

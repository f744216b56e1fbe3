import { defineConfig } from "vitest/config";

/** The suites beside the plain tests, by the variable that asks for them. */
const SUITES = { MW_SOAK: { directory: "test/soak", testTimeout: 3_600_000 }, MW_INTEROP: { directory: "test/interop", testTimeout: 900_000 } };
const suite = Object.entries(SUITES).find(([variable]) => process.env[variable] === "1")?.[1];

/** Plain tests; `test/soak` holds the long ones (`npm run test:soak`), `test/interop` those with software of others (`npm run test:interop`). */
export default defineConfig({
  test: {
    include: suite === undefined ? ["src/**/*.test.ts", "test/**/*.test.ts"] : [`${suite.directory}/**/*.test.ts`],
    exclude: suite === undefined ? Object.values(SUITES).map(({ directory }) => `${directory}/**`) : [],
    // Machines are real: two files at once fill two cores.
    maxWorkers: 2,
    // Generous, because a loaded machine is no defect: tests wait for conditions, not for times.
    testTimeout: suite?.testTimeout ?? 180_000,
    hookTimeout: 300_000,
    globalSetup: ["test/support/global-setup.ts"],
  },
});

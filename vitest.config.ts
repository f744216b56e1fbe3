import { defineConfig } from "vitest/config";

/** The suites beside the plain tests, by the variable that asks for them. */
const SUITES = {
  MW_SOAK: { files: ["test/soak/**/*.test.ts", "test/**/*.soak.test.ts"], testTimeout: 3_600_000 },
  MW_INTEROP: { files: ["test/interop/**/*.test.ts"], testTimeout: 900_000 },
};
const suite = Object.entries(SUITES).find(([variable]) => process.env[variable] === "1")?.[1];

/**
 * Plain tests; the long ones are in `test/soak`, or named `*.soak.test.ts` beside those of their kind (`npm run test:soak`); `test/interop` holds those with software of others
 * (`npm run test:interop`).
 */
export default defineConfig({
  test: {
    include: suite === undefined ? ["src/**/*.test.ts", "test/**/*.test.ts"] : suite.files,
    exclude: suite === undefined ? Object.values(SUITES).flatMap(({ files }) => files) : [],
    // Machines are real: two files at once fill two cores.
    maxWorkers: 2,
    // Generous, because a loaded machine is no defect: tests wait for conditions, not for times.
    testTimeout: suite?.testTimeout ?? 180_000,
    hookTimeout: 300_000,
    expect: { poll: { timeout: 60_000 } },
    globalSetup: ["test/support/global-setup.ts"],
    setupFiles: ["test/support/fast-check-seed.ts"],
  },
});

// Static checks: types, lint, layers, dead code.
import { join } from "node:path";
import { ROOT, run } from "./toolchain.mjs";

const bin = (name) => join(ROOT, "node_modules/.bin", name);

for (const project of ["tsconfig.json", "dashboard/tsconfig.json", "test/browser/tsconfig.json"]) run(process.execPath, [join(ROOT, "node_modules/typescript-native/bin/tsc"), "-p", project, "--noEmit"]);
run(bin("oxlint"), ["--type-aware", "--deny-warnings", "src", "test", "bench", "scripts", "dashboard/src"]);
const report = run(bin("depcruise"), ["--config", ".dependency-cruiser.cjs", "--output-type", "json", "src"], { quiet: true, check: false });
const { summary } = JSON.parse(report.stdout);
// A checker that saw nothing finds nothing: assert that the modules were there.
if (summary.totalCruised < 30) {
  process.stderr.write(`The layer check saw only ${summary.totalCruised} modules.\n`);
  process.exit(1);
}
for (const violation of summary.violations) process.stderr.write(`${violation.rule.name}: ${violation.from} -> ${violation.to}\n`);
if (summary.violations.length > 0) process.exit(1);
run(bin("knip"), ["--no-progress"]);
process.stderr.write(`checked ${summary.totalCruised} modules\n`);

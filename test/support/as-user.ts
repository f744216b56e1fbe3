/**
 * Runs commands as an ordinary user, through setpriv, with subordinate ids or without. For tests that run as root. The account exists in a mount namespace of the test's
 * own; the host's files are not touched.
 */
import { execFile } from "node:child_process";
import { chmodSync, chownSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";

const CHECKOUT = fileURLToPath(new URL("../../", import.meta.url));
const USER = 54_322;

export interface OrdinaryUser {
  readonly name: string;
  /** Directories of the user's own; `tmp` is TMPDIR. */
  readonly home: string;
  readonly tmp: string;
  /** Runs a shell line in the checkout, which is bound to where the user can look. Exit code, and both streams together. */
  run(line: string, options: { readonly subordinateIds: boolean }): Promise<{ readonly code: number; readonly output: string }>;
  /** Runs test files of the checkout. */
  suite(files: readonly string[], options: { readonly subordinateIds: boolean }): Promise<{ readonly passed: number; readonly failures: readonly string[] }>;
  remove(): void;
}

interface SuiteReport {
  readonly numPassedTests: number;
  readonly testResults: readonly { readonly message: string; readonly assertionResults: readonly { readonly status: string; readonly fullName: string; readonly failureMessages: readonly string[] }[] }[];
}

export function ordinaryUser(): OrdinaryUser {
  const base = mkdtempSync(join(tmpdir(), "mw-as-user-"));
  const name = "mwsuite";
  chmodSync(base, 0o755);
  for (const directory of ["checkout", "home", "tmp"]) mkdirSync(join(base, directory));
  for (const directory of ["home", "tmp"]) chownSync(join(base, directory), USER, USER);
  writeFileSync(join(base, "passwd"), `${readFileSync("/etc/passwd", "utf8")}${name}:x:${USER}:${USER}::${join(base, "home")}:/bin/sh\n`);
  writeFileSync(join(base, "subid"), `${name}:800000:65536\n`);
  writeFileSync(join(base, "nothing"), "");
  const user: OrdinaryUser = {
    name,
    home: join(base, "home"),
    tmp: join(base, "tmp"),
    run(line, { subordinateIds }) {
      const binds = [
        `mount --bind ${CHECKOUT} ${base}/checkout`,
        `mount --bind ${base}/passwd /etc/passwd`,
        ...["subuid", "subgid"].map((file) => (subordinateIds ? `mount --bind ${base}/subid /etc/${file}` : `{ [ ! -e /etc/${file} ] || mount --bind ${base}/nothing /etc/${file}; }`)),
      ];
      const environment = `env -i PATH=${process.env["PATH"] ?? ""} HOME=${base}/home TMPDIR=${base}/tmp`;
      const script = `${binds.join(" && ")} && cd ${base}/checkout && exec setpriv --reuid=${USER} --regid=${USER} --clear-groups ${environment} /bin/sh -c "$0"`;
      return new Promise((resolve) => {
        execFile("unshare", ["--mount", "/bin/sh", "-c", script, line], { maxBuffer: 64 << 20, timeout: 900_000 }, (error, stdout, stderr) => resolve({ code: error === null ? 0 : Number(error.code ?? 1), output: stdout + stderr }));
      });
    },
    async suite(files, options) {
      const report = join(base, "tmp", `report-${options.subordinateIds}.json`);
      const { output } = await user.run(`exec ${process.execPath} node_modules/vitest/vitest.mjs run --configLoader runner --reporter=json --outputFile=${report} ${files.join(" ")}`, options);
      try {
        return read(JSON.parse(readFileSync(report, "utf8")) as SuiteReport);
      } catch {
        throw new Error(`The suite wrote no report as an ordinary user:\n${output.slice(-4000)}`);
      }
    },
    remove: () => rmSync(base, { recursive: true, force: true }),
  };
  return user;
}

function read({ numPassedTests, testResults }: SuiteReport): { readonly passed: number; readonly failures: readonly string[] } {
  const failures = testResults.flatMap((file) => [file.message, ...file.assertionResults.filter((result) => result.status === "failed").map((result) => `${result.fullName}: ${result.failureMessages.join("\n").slice(0, 500)}`)]);
  return { passed: numPassedTests, failures: failures.filter((text) => text !== "") };
}

/**
 * What every sandbox backend has to do, as tests against the interface alone. A backend's own test file calls `sandboxConformance` with a way to open the
 * backend and an image; what the backend declares absent is asserted to be refused.
 */
import { describe } from "vitest";
import type { RootFilesystem, SandboxBackend } from "../../../src/sandbox/sandbox.ts";
import { attackerSuite } from "./attackers.ts";
import { execSuite } from "./exec.ts";
import { execSessionSuite } from "./exec-sessions.ts";
import { fileSuite } from "./files.ts";
import { imageSuite } from "./image-defaults.ts";
import { layerSuite } from "./layers.ts";
import { lifeSuite } from "./life.ts";
import { limitSuite } from "./limits.ts";
import { neighbourSuite } from "./neighbours.ts";
import { networkSuite } from "./network.ts";
import { workspaceSuite } from "./workspace.ts";

export interface ConformanceOptions {
  readonly open: () => Promise<SandboxBackend>;
  /** The image of `test/support/rootfs.ts`, in a form that the backend takes. */
  readonly root: () => RootFilesystem;
  /** A directory for files and sockets of the tests on the host side. */
  readonly scratch: () => string;
}

export function sandboxConformance(name: string, options: ConformanceOptions): void {
  describe(name, () => {
    describe("exec", () => execSuite(options));
    describe("exec sessions", () => execSessionSuite(options));
    describe("image defaults", () => imageSuite(options));
    describe("layers", () => layerSuite(options));
    describe("files", () => fileSuite(options));
    describe("limits", () => limitSuite(options));
    describe("network", () => networkSuite(options));
    describe("life", () => lifeSuite(options));
    describe("workspace", () => workspaceSuite(options));
    describe("neighbours", () => neighbourSuite(options));
    describe("attackers", () => attackerSuite(options));
  });
}

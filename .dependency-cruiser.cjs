// Imports point upwards in this list only; what stands above does not know what stands below.
const LAYERS = ["core", "protocol", "store", "image", "sandbox", "build", "policy", "gateway", "task", "harness", "world", "rollout", "certify", "factory", "delivery", "trainer", "cluster", "server", "cli"];

/** @type {import("dependency-cruiser").IConfiguration} */
module.exports = {
  forbidden: [
    { name: "no-cycles", severity: "error", from: {}, to: { circular: true, viaOnly: { dependencyTypesNot: ["type-only"] } } },
    ...LAYERS.slice(0, -1).map((layer, index) => ({
      name: `${layer}-imports-only-above`,
      severity: "error",
      from: { path: `^src/${layer}/` },
      to: {
        path: LAYERS.slice(index + 1).map((below) => `^src/${below}/`),
        // What is mounted is described beside the machine: images take types, and only types, from there.
        ...(layer === "image" ? { dependencyTypesNot: ["type-only"] } : {}),
      },
    })),
  ],
  options: { tsConfig: { fileName: "tsconfig.json" }, tsPreCompilationDeps: true, doNotFollow: { path: "node_modules" }, exclude: { path: "\\.test\\.ts$" } },
};

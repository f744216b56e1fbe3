/** The module of the dashboard: its built page, and what the page has to know about the server it came from. */
import { readFileSync, readdirSync } from "node:fs";
import { extname, join, relative } from "node:path";
import { fileURLToPath } from "node:url";
import { gzipSync } from "node:zlib";
import type { FastifyReply, FastifyRequest } from "fastify";
import type { Site } from "../runs/contract/updates.ts";
import type { ServerModule } from "../services.ts";

/** Where `scripts/build.mjs` puts the page. */
const BUILT = fileURLToPath(new URL("../../../dist-dashboard/", import.meta.url));

const TYPES: Readonly<Record<string, string>> = { ".html": "text/html; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".css": "text/css; charset=utf-8", ".svg": "image/svg+xml", ".json": "application/json" };

/**
 * Nothing but files of this server, no inline script or style, no frame around it, no form, no plug-in. The page shows what agents wrote, and they know that somebody will look.
 */
const SECURITY_HEADERS: Readonly<Record<string, string>> = {
  "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; font-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'",
  "x-content-type-options": "nosniff",
  "x-frame-options": "DENY",
  "referrer-policy": "no-referrer",
  "cross-origin-opener-policy": "same-origin",
  "cross-origin-resource-policy": "same-origin",
};

interface Asset {
  readonly type: string;
  readonly bytes: Buffer;
  readonly gzip: Buffer;
}

/** What a server offers beside runs, by the modules that it has. */
export function dashboardModule(offers: { readonly sandboxes: boolean; readonly delivery: boolean }): ServerModule {
  return (app, { home, version }) => {
    const assets = readAssets(BUILT);
    // Every address of the page is the page; what lies beside it is itself.
    const page = async (request: FastifyRequest, reply: FastifyReply): Promise<FastifyReply> => send(reply, assets.get((request.params as { readonly "*"?: string })["*"] ?? "") ?? assets.get("index.html"), "no-cache");
    app.get("/", { config: { open: true } }, page);
    app.get("/ui", { config: { open: true } }, page);
    app.get("/ui/*", { config: { open: true } }, page);
    app.get("/ui/assets/:name", { config: { open: true } }, async (request, reply) => {
      // The route has this parameter.
      const { name } = request.params as { readonly name: string };
      // Names hold digests of what they name.
      return send(reply, assets.get(`assets/${name}`), "public, max-age=31536000, immutable");
    });
    app.get("/v1/site", (): Site => ({ version, home, ...offers, writable: true }));
  };
}

function send(reply: FastifyReply, asset: Asset | undefined, cache: string): FastifyReply {
  void reply.headers(SECURITY_HEADERS);
  if (asset === undefined) return reply.code(404).type("text/plain; charset=utf-8").send("The page is not built, or has no such part. In a checkout: node scripts/build.mjs\n");
  const zipped = (reply.request.headers["accept-encoding"] ?? "").includes("gzip");
  if (zipped) void reply.header("content-encoding", "gzip");
  return reply
    .type(asset.type)
    .header("cache-control", cache)
    .header("vary", "accept-encoding")
    .send(zipped ? asset.gzip : asset.bytes);
}

function readAssets(directory: string): ReadonlyMap<string, Asset> {
  const assets = new Map<string, Asset>();
  try {
    for (const entry of readdirSync(directory, { recursive: true, withFileTypes: true })) {
      const type = TYPES[extname(entry.name)];
      if (!entry.isFile() || type === undefined) continue;
      const path = join(entry.parentPath, entry.name);
      const bytes = readFileSync(path);
      assets.set(relative(directory, path), { type, bytes, gzip: gzipSync(bytes) });
    }
  } catch {
    // A server without its page serves everything else.
  }
  return assets;
}

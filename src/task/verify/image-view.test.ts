import { execFileSync } from "node:child_process";
import { mkdir, rm, symlink, writeFile } from "node:fs/promises";
import { dirname, join } from "node:path";
import { afterAll, beforeAll, expect, test } from "vitest";
import { temporaryDirectory } from "../../../test/support/task-fixture.ts";
import { imageView, type ImageView } from "./image-view.ts";

let root = "";
let view: ImageView;

async function put(layer: string, path: string, content: string | { link: string }): Promise<void> {
  const file = join(root, layer, path);
  await mkdir(dirname(file), { recursive: true });
  if (typeof content === "string") await writeFile(file, content);
  else await symlink(content.link, file);
}

beforeAll(async () => {
  root = await temporaryDirectory();
  await put("low", "usr/bin/sh", "low sh");
  await put("low", "usr/bin/gone", "x");
  await put("low", "bin", { link: "usr/bin" });
  await put("low", "etc/secret", { link: "/etc/hostname" });
  await put("low", "loop", { link: "loop" });
  await put("low", "up", { link: "../../../../usr" });
  // A lower layer's link that an upper layer's directory hides leads to the host when followed there.
  await put("low", "hidden", { link: "/etc" });
  await put("low", "file/inner", "x");
  await put("top", "usr/bin/sh", "top sh");
  await put("top", "usr/bin/new", "n");
  await put("top", "hidden/mine", "m");
  await put("top", "file", "now a file");
  view = imageView({ digest: "sha256:x", layers: [join(root, "top"), join(root, "low")], parts: [], env: {}, workdir: "/", user: "", entrypoint: [], cmd: [] });
});
afterAll(() => rm(root, { recursive: true, force: true }));

const text = async (path: string): Promise<string | null> => {
  const bytes = await view.read(path, 100);
  return bytes === null ? null : Buffer.from(bytes).toString();
};

test("the topmost layer wins, directories merge, links resolve inside", async () => {
  expect(await text("/bin/sh")).toBe("top sh");
  expect(await view.real("/bin/sh")).toBe("/usr/bin/sh");
  expect(await text("/up/bin/new")).toBe("n");
  expect([...(await view.list("/bin"))].sort()).toEqual(["gone", "new", "sh"]);
  expect(await view.entry("/bin")).toMatchObject({ type: "symlink", target: "usr/bin" });
  expect(await view.entry("/")).toMatchObject({ type: "directory" });
  expect(await text("/usr/bin/../bin/./sh")).toBe("top sh");
});

test("nothing of the host is seen", async () => {
  expect(await text("/etc/secret")).toBeNull();
  expect(await view.list("/hidden")).toEqual(["mine"]);
  expect(await view.entry("/hidden/hostname")).toBeNull();
  expect(await view.entry("/loop/x")).toBeNull();
  expect(await view.entry("/file/inner")).toBeNull();
});

test.skipIf(process.getuid?.() !== 0)("whiteouts hide (making one takes root)", async () => {
  execFileSync("mknod", [join(root, "top/usr/bin/gone"), "c", "0", "0"]);
  const fresh = imageView({ digest: "sha256:y", layers: [join(root, "top"), join(root, "low")], parts: [], env: {}, workdir: "/", user: "", entrypoint: [], cmd: [] });
  expect(await fresh.entry("/usr/bin/gone")).toBeNull();
  expect([...(await fresh.list("/bin"))].sort()).toEqual(["new", "sh"]);
});

test("a part has its own layers", async () => {
  const parts = imageView({
    digest: "sha256:z",
    layers: [join(root, "top")],
    parts: [{ target: "/usr", layers: [join(root, "low/usr")] }],
    env: {},
    workdir: "/",
    user: "",
    entrypoint: [],
    cmd: [],
  });
  expect(Buffer.from((await parts.read("/usr/bin/sh", 10)) ?? []).toString()).toBe("low sh");
});

import { posix } from "node:path";
import { describe, expect, test } from "vitest";
import type { WorkspaceChange } from "../../sandbox/sandbox.ts";
import type { ImageEntry, ImageView } from "./image-view.ts";
import { planSanitation, type Sanitation, type SanitationFacts } from "./sanitation.ts";

const ELF = "\x7fELF...";
/** What the image has: content of files, `->` for links. Directories follow from them. */
const IMAGE: Readonly<Record<string, string>> = {
  "/bin": "->usr/bin",
  "/lib": "->usr/lib",
  "/usr/bin/bash": ELF,
  "/usr/bin/sh": "->bash",
  "/usr/bin/python3": ELF,
  "/usr/bin/env": ELF,
  "/usr/local/bin/backup": "#!/bin/sh\n",
  "/usr/lib/x86_64-linux-gnu/libc.so.6": ELF,
  "/usr/lib/python3.11/re.py": "x",
  "/usr/lib/python3.11/json/__init__.py": "x",
  "/usr/lib/python3/dist-packages/pytest/__init__.py": "x",
  "/usr/lib/python3/dist-packages/requests/__init__.py": "x",
  "/usr/share/perl5/JSON.pm": "x",
  "/etc/passwd": "root:x:0:0::/root:/bin/bash\n",
  "/etc/nsswitch.conf": "x",
  "/root/.bashrc": "x",
  "/opt/venv/bin/python": ELF,
  "/opt/venv/lib/python3.11/site-packages/flask/__init__.py": "x",
  "/app/bin/tool": "#!/bin/sh\n",
  "/app/run.sh": "#!/bin/sh\n",
  "/app/main.py": "x",
  "/app/conftest.py": "x",
  "/app/pyproject.toml": '[project]\nname = "x"\n[tool.pytest.ini_options]\naddopts = "-q"\n[tool.ruff]\nx = 1\n',
  "/srv/keep": "x",
  "/var/lib/dpkg/info/libc-bin.postinst": "#!/bin/sh\n",
  "/var/lib/dpkg/info/libc-bin.list": "x",
  "/etc/ld.so.cache": "x",
};

const image: ImageView = {
  entry: async (path) => entryOf(path),
  real: async (path) => (path.startsWith("/bin") || path.startsWith("/lib") ? `/usr${path}` : entryOf(path) === null ? null : path),
  list: async (path) => {
    const names = new Set<string>();
    for (const file of Object.keys(IMAGE)) if (file.startsWith(`${path}/`)) names.add(file.slice(path.length + 1).split("/")[0] ?? "");
    return [...names];
  },
  read: async (path, max) => (IMAGE[path] === undefined ? null : Buffer.from(IMAGE[path]).subarray(0, max)),
};

function entryOf(path: string): ImageEntry | null {
  const content = IMAGE[path];
  if (content !== undefined) return { type: content.startsWith("->") ? "symlink" : "file", mode: 0o755, size: content.length, target: content.startsWith("->") ? content.slice(2) : null };
  return Object.keys(IMAGE).some((file) => file.startsWith(`${path}/`)) ? { type: "directory", mode: 0o755, size: 0, target: null } : null;
}

/** Changes as `path`, `path/` for a directory, `-path` for a removal; added or changed by what the image has. Values are the new content. */
async function plan(changes: Readonly<Record<string, string>>, facts: Partial<SanitationFacts> = {}): Promise<Sanitation> {
  const list = Object.entries(changes).map(([key]): WorkspaceChange => {
    const removed = key.startsWith("-");
    const path = posix.normalize(key.replace(/^-/, "")).replace(/\/$/, "");
    const kind = removed ? "removed" : entryOf(path) === null ? "added" : "changed";
    const type = key.endsWith("/") ? "directory" : changes[key]?.startsWith("->") === true ? "symlink" : "file";
    return { path: Buffer.from(path), kind, type, mode: 0o755, size: 1, target: null };
  });
  return planSanitation(list, {
    image,
    path: "/opt/venv/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/app/bin",
    workdir: "/app",
    homes: ["/root"],
    agentOwns: [],
    instruction: "",
    read: async (path) => Buffer.from(changes[Buffer.from(path).toString()] ?? ""),
    ...facts,
  });
}

describe("restored from the image", () => {
  test.each([
    "/usr/bin/python3",
    "/usr/bin/sh",
    "-/usr/bin/env",
    "/usr/local/bin/backup",
    "/usr/lib/x86_64-linux-gnu/libc.so.6",
    "/usr/lib/python3.11/re.py",
    "-/usr/lib/python3.11/re.py",
    "/usr/lib/python3/dist-packages/pytest/__init__.py",
    "/opt/venv/bin/python",
    "/opt/venv/lib/python3.11/site-packages/flask/__init__.py",
    "/etc/nsswitch.conf",
    "/root/.bashrc",
    "/app/conftest.py",
    "-/app/conftest.py",
    "/var/lib/dpkg/info/libc-bin.postinst",
    // A directory in place of a link, a file in place of a directory, a whole directory gone.
    "/bin/",
    "/usr/bin",
    "-/usr/lib",
    "-/usr/lib/python3.11",
  ])("%s", async (path) => {
    const result = await plan({ [path]: "" });
    expect(result.restored).toEqual([path.replace(/^-/, "").replace(/\/$/, "")]);
    expect(result.removed).toEqual([]);
    expect(result.discard.map((entry) => Buffer.from(entry).toString())).toContain(result.restored[0]);
  });

  test("a replaced directory takes what is in it along", async () => {
    const result = await plan({ "/bin/": "", "/bin/sh": "evil", "/bin/ls": "evil" });
    expect(result.restored).toEqual(["/bin"]);
    expect(result.removed).toEqual([]);
  });
});

describe("taken away", () => {
  test.each<[string, string]>([
    ["/usr/local/bin/python3", "a program before the image's"],
    ["/opt/venv/bin/env", "in an installation on the PATH"],
    ["/usr/local/bin/curl", "a tool that verifiers fetch"],
    ["/root/.local/bin/uvx", "where verifiers put theirs"],
    ["/usr/local/lib/libc.so.6", "a library before the image's"],
    ["/usr/lib/x86_64-linux-gnu/glibc-hwcaps/x86-64-v3/libc.so.6", "a library for a processor level"],
    ["/etc/ld.so.preload", "loaded into everything"],
    ["/etc/ld.so.conf.d/evil.conf", "where libraries are looked for"],
    ["/etc/profile.d/evil.sh", "run by login shells"],
    ["/root/.curlrc", "options of curl"],
    ["/root/.cache/uv/archive/x", "a cache to install from"],
    ["/usr/lib/python3.11/sitecustomize.py", "run by every Python"],
    ["/srv/usercustomize.py", "wherever it lies"],
    ["/usr/lib/python311.zip", ""],
    ["/usr/bin/pyvenv.cfg", "moves Python's home"],
    ["/usr/lib/python3.11/re.cpython-311-x86_64-linux-gnu.so", "before re.py"],
    ["/usr/lib/python3.11/re/", "a package before the module"],
    ["/usr/lib/python3.11/json.so", ""],
    ["/usr/local/lib/python3.11/dist-packages/pytest/", "another pytest"],
    ["/app/conftest.py.d/conftest.py", ""],
    ["/conftest.py", "above the tests"],
    ["/app/pytest.py", "beside the program"],
    ["/app/_pytest/", ""],
    ["/tmp/anything.py", ""],
    ["/usr/local/share/perl/5.36.0/JSON.pm", "before the image's module"],
    ["/logs", "not a directory"],
    ["/logs/verifier/reward.json", "a planted reward"],
    ["/tests/test.sh", "planted tests"],
  ])("%s (%s)", async (path) => {
    const result = await plan({ [path]: "" });
    expect(result.removed).toEqual([path.replace(/\/$/, "")]);
    expect(result.restored).toEqual([]);
  });

  test("a .pth file that runs code, not one that names a path", async () => {
    const site = "/usr/local/lib/python3.11/dist-packages";
    expect((await plan({ [`${site}/a.pth`]: "import os; os.system('x')" })).removed).toHaveLength(1);
    expect((await plan({ [`${site}/a.pth`]: "/app\nimport\tos" })).removed).toHaveLength(1);
    expect((await plan({ [`${site}/a.pth`]: "/app/src\n" })).removed).toEqual([]);
  });

  test("an editable install stays as plain paths, its code does not", async () => {
    const site = "/usr/local/lib/python3.11/dist-packages";
    const pth = `${site}/__editable__.mine-1.pth`;
    const finder = "import sys\nMAPPING: dict[str, str] = {'mine': '/app/src/mine', 'other': '/app/src/other'}\nNAMESPACES = {}\nevil()\n";
    const changes = { [pth]: "import __editable___mine_1_finder; __editable___mine_1_finder.install()", [`${site}/__editable___mine_1_finder.py`]: finder };
    const result = await plan(changes);
    expect(result.removed).toEqual([pth]);
    expect(result.editable).toEqual([{ path: pth, content: "/app/src\n" }]);
    expect((await plan({ ...changes, [`${site}/__editable___mine_1_finder.py`]: "MAPPING = {'json': '/app/evil'}\n" })).editable).toEqual([]);
    expect((await plan({ [pth]: "import os; evil()" })).editable).toEqual([]);
  });

  test("a plugin of pytest, not other entry points", async () => {
    const info = "/usr/local/lib/python3.11/dist-packages/evil-1.dist-info/entry_points.txt";
    expect((await plan({ [info]: "[console_scripts]\nx = y\n[pytest11]\nevil = evil\n" })).removed).toEqual([info]);
    expect((await plan({ [info]: "[console_scripts]\nx = y\n" })).removed).toEqual([]);
  });

  test("compiled Python, as whole directories, without filling the record", async () => {
    const result = await plan({ "/app/__pycache__/": "", "/app/__pycache__/main.cpython-311.pyc": "evil", "/usr/lib/python3.11/__pycache__/re.cpython-311.pyc": "evil" });
    expect(result.discard.map((path) => Buffer.from(path).toString())).toEqual(expect.arrayContaining(["/app/__pycache__", "/usr/lib/python3.11/__pycache__"]));
    expect(result.removed).toEqual([]);
    expect(result.notes).toEqual([expect.stringContaining("2 directories")]);
  });
});

describe("kept", () => {
  test("installed packages, users, configuration, the project", async () => {
    const result = await plan({
      "/usr/bin/jq": ELF,
      "/usr/bin/python3.12": ELF,
      "/usr/local/bin/mytool": ELF,
      "/root/.local/bin/mytool": ELF,
      "/usr/lib/x86_64-linux-gnu/libjq.so.1": ELF,
      "/usr/lib/x86_64-linux-gnu/libjq.so.1.0.4": ELF,
      "/usr/local/lib/python3.11/dist-packages/numpy/": "",
      "/usr/local/lib/python3.11/dist-packages/numpy/conftest.py": "",
      "/usr/local/lib/python3.11/dist-packages/numpy/__init__.py": "",
      "/usr/local/lib/python3.11/dist-packages/numpy-1.dist-info/": "",
      "/usr/local/lib/python3.11/dist-packages/numpy-1.dist-info/entry_points.txt": "[console_scripts]\n",
      "/etc/passwd": "root:x:0:0::/root:/bin/bash\nme:x:1000:1000::/home/me:/bin/sh\n",
      "/home/me/": "",
      "/home/me/.bashrc": "",
      "/etc/nginx/nginx.conf": "",
      "/app/main.py": "",
      "/app/run.sh": "",
      "/app/bin/tool": "",
      "/app/test_new.py": "",
      "/app/queue.py": "",
      "-/srv/keep": "",
      "/tmp/out.txt": "",
      "/usr/bin/": "",
      "/usr/lib/python3.11/": "",
      "/logs/agent/log": "",
      "/var/lib/dpkg/status": "",
      "/var/lib/dpkg/info/libc-bin.list": "",
      "/var/lib/dpkg/info/new.postinst": "",
      "/etc/ld.so.cache": "",
    });
    expect({ restored: result.restored, removed: result.removed }).toEqual({ restored: [], removed: [] });
    expect(result.refreshLoaderCache).toBe(true);
  });

  test("what the task declares to be the agent's", async () => {
    const agentOwns = ["/usr/local/bin/backup", "/opt/venv/**"];
    expect((await plan({ "/usr/local/bin/backup": "", "/opt/venv/bin/python": "", "/usr/bin/sh": "" }, { agentOwns })).restored).toEqual(["/usr/bin/sh"]);
  });

  test("scripts and new files that the instruction names, but no interpreter and no machine code", async () => {
    const instruction = "Repair `/usr/local/bin/backup`, put the alias in ~/.bashrc, write /tmp/job.py. Run it with /usr/bin/python3, or /usr/bin/bash.";
    const result = await plan({ "/usr/local/bin/backup": "", "/root/.bashrc": "", "/tmp/job.py": "", "/tmp/job.pyx.py": "", "/usr/bin/python3": "", "/usr/bin/bash": "" }, { instruction });
    expect(result.restored).toEqual(["/usr/bin/python3", "/usr/bin/bash"]);
    expect(result.removed).toEqual(["/tmp/job.pyx.py"]);
  });
});

describe("pytest's configuration", () => {
  test.each<[string, string, boolean]>([
    ["/app/pyproject.toml", '[project]\nname = "y"\ndependencies = ["x"]\n[tool.pytest.ini_options]\naddopts = "-q"\n[tool.ruff]\nx = 2\n', false],
    ["/app/pyproject.toml", '[project]\nname = "x"\n[tool.pytest.ini_options]\naddopts = "-q -p evil"\n[tool.ruff]\nx = 1\n', true],
    ["/app/setup.cfg", "[metadata]\nname = x\n", false],
    ["/app/setup.cfg", "[tool:pytest]\naddopts = -p evil\n", true],
    ["/app/pytest.ini", "[pytest]\n", true],
    ["/app/tox.ini", "[tox]\n", false],
  ])("%s %j", async (path, content, changed) => {
    const result = await plan({ [path]: content });
    expect(result.pytestConfigChanged).toBe(changed);
    expect(result.removed).toEqual([]);
  });
});

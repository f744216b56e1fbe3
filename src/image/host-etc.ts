/** A copy of /etc for the image `host`: what everybody may read, less what looks like a secret, with password files that hold no passwords. */
import { readFile } from "node:fs/promises";
import { join } from "node:path";
import { directoryEntry, fileEntry, type TreeEntry, type TreeEvent } from "./tree.ts";
import { readHostTree } from "./unpacker.ts";

/** Places of secrets whatever their permissions; below /etc. A trailing slash: with everything below. */
const HIDDEN = [
  "shadow", "shadow-", "gshadow", "gshadow-", "security/opasswd", "sudoers", "sudoers.d/", "ssl/private/", "ssh/", "letsencrypt/", "pki/tls/private/", "wireguard/", "openvpn/", "ipsec.secrets",
  "ipsec.d/private/", "krb5.keytab", "kubernetes/", "rancher/", "docker/", "containers/auth.json", "NetworkManager/system-connections/", "wpa_supplicant/", "ppp/chap-secrets", "ppp/pap-secrets",
  "apt/auth.conf", "apt/auth.conf.d/", "npmrc", "boto.cfg", "s3cmd.cfg", "rclone.conf", "netrc", "git-credentials", "msmtprc", "exim4/passwd.client", "postfix/sasl_passwd", "mysql/debian.cnf",
  "cloud/", "machine-id", "hostname", "ssh_config.d/", "vpnc/", "samba/private/", "ceph/", "consul.d/", "vault.d/", "nomad.d/", "salt/", "puppet/", "chef/", "grafana/", "gitlab/", "gitlab-runner/",
];

/** Keys, and addresses with a password in them. */
const SECRET_TEXT = /PRIVATE KEY(?: BLOCK)?-----|:\/\/[^\s/:@"']{1,256}:[^\s/:@"']{1,256}@/;
/** Files of /etc are small; a larger one cannot be inspected as a whole and is left out. */
const INSPECTED_BYTES = 1024 * 1024;

export async function* etcEvents(directory: string): AsyncGenerator<TreeEvent> {
  const skipped = new Set<string>();
  let file: { readonly entry: TreeEntry; readonly parts: TreeEvent[]; bytes: number } | null = null;
  const flush = function* (): Generator<TreeEvent> {
    if (file === null) return;
    const { entry, parts } = file;
    file = null;
    const text = Buffer.concat(parts.map((part) => (part.type === "data" ? part.bytes : Buffer.alloc(0)))).toString("latin1");
    if (SECRET_TEXT.test(text)) {
      skipped.add(entry.path.toString("latin1").slice("etc/".length));
      return;
    }
    yield { type: "entry", entry };
    yield* parts;
  };
  for await (const event of readHostTree(directory, { readable: true })) {
    if (event.type === "data") {
      if (file === null) continue;
      file.parts.push(event);
      file.bytes += event.bytes.length;
      continue;
    }
    yield* flush();
    const path = event.entry.path.toString("latin1");
    const entry = { ...event.entry, path: prefixed(event.entry.path), target: event.entry.kind === "hardlink" && event.entry.target !== null ? prefixed(event.entry.target) : event.entry.target };
    if (!isOpen(event.entry) || isHidden(path) || isBelow(path, skipped) || (event.entry.kind === "hardlink" && skipped.has(event.entry.target?.toString("latin1") ?? ""))) {
      skipped.add(path);
      continue;
    }
    if (entry.kind === "file" && entry.size <= INSPECTED_BYTES) file = { entry, parts: [], bytes: 0 };
    else if (entry.kind === "file") skipped.add(path);
    else yield { type: "entry", entry };
  }
  yield* flush();
  yield* passwordFiles(directory);
}

const prefixed = (path: Buffer): Buffer => (path.length === 0 ? Buffer.from("etc") : Buffer.concat([Buffer.from("etc/"), path]));

function isOpen({ kind, mode }: TreeEntry): boolean {
  if (kind === "directory") return (mode & 0o005) === 0o005;
  return kind === "symlink" || kind === "hardlink" || (kind === "file" && (mode & 0o004) !== 0);
}

function isHidden(path: string): boolean {
  return HIDDEN.some((place) => (place.endsWith("/") ? `${path}/`.startsWith(place) : path === place)) || path.split("/").some((name) => /^(\.ssh|\.gnupg|\.netrc|\.git-credentials|\.env|id_(rsa|dsa|ecdsa|ed25519))$/.test(name));
}

function isBelow(path: string, skipped: ReadonlySet<string>): boolean {
  for (let slash = path.lastIndexOf("/"); slash > 0; slash = path.lastIndexOf("/", slash - 1)) if (skipped.has(path.slice(0, slash))) return true;
  return false;
}

/** Locked entries for every user and group, so that programs that add users find the files that they expect. */
async function* passwordFiles(directory: string): AsyncGenerator<TreeEvent> {
  const lines = async (name: string): Promise<readonly (readonly string[])[]> =>
    (await readFile(join(directory, name), "utf8").catch(() => "")).split("\n").filter((line) => /^[^:#+-][^:]*:/.test(line)).map((line) => line.split(":"));
  const users = await lines("passwd");
  const groups = await lines("group");
  const gid = Number(groups.find(([name]) => name === "shadow")?.[2] ?? 0);
  const files: readonly (readonly [string, string])[] = [
    ["shadow", users.map(([name]) => `${name}:*:19000:0:99999:7:::\n`).join("")],
    ["gshadow", groups.map(([name, , , members]) => `${name}:*::${members ?? ""}\n`).join("")],
  ];
  for (const [name, text] of files) {
    const bytes = Buffer.from(text);
    yield { type: "entry", entry: fileEntry(`etc/${name}`, 0o640, bytes.length, { gid }) };
    if (bytes.length > 0) yield { type: "data", offset: 0, bytes };
  }
  for (const [name, text] of [["machine-id", ""], ["hostname", "localhost\n"]] as const) {
    yield { type: "entry", entry: fileEntry(`etc/${name}`, 0o644, text.length) };
    if (text !== "") yield { type: "data", offset: 0, bytes: Buffer.from(text) };
  }
  yield { type: "entry", entry: directoryEntry("etc/sudoers.d", 0o755) };
}

/** `mw key ...` */
import { MwError } from "../../core/errors.ts";
import { makeDataDirectory } from "../../core/home.ts";
import { addKey, readKeys, removeKeys } from "../../server/authentication/keys.ts";
import { loadConfig } from "../config.ts";
import type { AppContext } from "../context.ts";
import { formatTable, note, printJson, printLine } from "../output.ts";
import type { DataFlag } from "../serve.ts";
import { withData } from "./serve.ts";

export function addOwnerKey(this: AppContext, flags: DataFlag, owner: string): void {
  const home = homeOf(this, flags);
  makeDataDirectory(home);
  printLine(this, addKey(home, owner, this.runtime));
  note(this, `a key of ${owner}: kept as its hash, so this is the only time that it is shown`);
}

export function listKeys(this: AppContext, flags: DataFlag & { readonly json: boolean }): void {
  const keys = readKeys(homeOf(this, flags)).map(({ owner, createdAt }) => ({ owner, createdAt: new Date(createdAt).toISOString() }));
  if (flags.json) printJson(this, { keys });
  else if (keys.length === 0) note(this, "no keys but the server's own: mw key add OWNER makes one");
  else printLine(this, formatTable([{ title: "OWNER" }, { title: "SINCE" }], keys.map(({ owner, createdAt }) => [owner, createdAt])));
}

export function removeOwnerKeys(this: AppContext, flags: DataFlag, owner: string): void {
  if (removeKeys(homeOf(this, flags), owner) === 0) throw new MwError("not_found", `${JSON.stringify(owner)} has no key here`, { fix: "mw key ls lists the owners" });
}

function homeOf(context: AppContext, flags: DataFlag): string {
  return loadConfig(withData(context, flags), context.cwd).home.value;
}

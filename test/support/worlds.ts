/** The shipped tasks and the agents that try to cheat them. */
import { existsSync, readdirSync, readFileSync, writeFileSync } from "node:fs";
import { join, resolve } from "node:path";

export const WORLD = resolve("worlds/terminal");

export function shippedTasks(): readonly string[] {
  return readdirSync(WORLD).filter((name) => existsSync(join(WORLD, name, "task.toml")));
}

/** Turns a shell program into a file for the `script` harness, which plays one line a command. */
export function asScript(program: string, to: string): string {
  const encoded = readFileSync(program).toString("base64");
  writeFileSync(to, `echo ${encoded} | base64 -d > /tmp/.agent && bash /tmp/.agent; rm -f /tmp/.agent\n`);
  return to;
}

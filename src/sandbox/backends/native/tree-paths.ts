/** Paths of downloaded trees, as byte strings (latin1: one character a byte). */
import { LIMITS } from "../../../core/limits.ts";

const COMPONENT_BYTES = 255;
/** As many links as Linux follows. */
const LINKS_MOST = 40;

/** The components of a relative path, or null when it is absolute, empty, too long, or has a component that is no name. */
export function validComponents(path: Buffer): readonly string[] | null {
  if (path.length === 0 || path.length >= LIMITS.treePathBytes || path.includes(0)) return null;
  const components = path.toString("latin1").split("/");
  return components.every((name) => name !== "" && name !== "." && name !== ".." && name.length <= COMPONENT_BYTES) ? components : null;
}

/**
 * Whether following a link could leave the tree: its target, resolved from the link's place, with every other link of the tree (`links`, path to target)
 * followed on the way. What is not there counts as a directory, so that nothing made later opens a way out. Too many links count as leaving.
 */
export function escapes(link: string, target: string, links: ReadonlyMap<string, string>): boolean {
  const at = link.split("/").slice(0, -1);
  const rest = target.split("/").toReversed();
  if (target.startsWith("/")) return true;
  for (let followed = 0; rest.length > 0; ) {
    const name = rest.pop();
    if (name === undefined || name === "" || name === ".") continue;
    if (name === "..") {
      if (at.length === 0) return true;
      at.pop();
      continue;
    }
    at.push(name);
    const next = links.get(at.join("/"));
    if (next === undefined) continue;
    if (next.startsWith("/") || ++followed > LINKS_MOST) return true;
    at.pop();
    rest.push(...next.split("/").toReversed());
    if (rest.length > LIMITS.treePathBytes) return true;
  }
  return false;
}

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

/** What may still be spent on following links; shared by all links of a tree, of which each may be made to cost as much as thousands. */
export interface LinkBudget {
  work: number;
}

/**
 * Whether following a link could leave the tree: its target, resolved from the link's place, with every other link of the tree (`links`, path to target)
 * followed on the way. What is not there counts as a directory, so that nothing made later opens a way out. Too many links count as leaving, and so does what
 * the budget does not last for.
 */
export function escapes(link: string, target: string, links: ReadonlyMap<string, string>, budget: LinkBudget = { work: LIMITS.treeLinkWork }): boolean {
  if (target.startsWith("/") || budget.work < 0) return true;
  let at = link.slice(0, Math.max(0, link.lastIndexOf("/")));
  const rest = target.split("/").toReversed();
  for (let followed = 0; rest.length > 0; ) {
    const name = rest.pop();
    budget.work -= at.length + 16;
    if (budget.work < 0) return true;
    if (name === undefined || name === "" || name === ".") continue;
    if (name === "..") {
      if (at === "") return true;
      at = at.slice(0, Math.max(0, at.lastIndexOf("/")));
      continue;
    }
    const inside = at === "" ? name : `${at}/${name}`;
    const next = links.get(inside);
    if (next === undefined) {
      at = inside;
      continue;
    }
    if (next.startsWith("/") || ++followed > LINKS_MOST) return true;
    rest.push(...next.split("/").toReversed());
    if (rest.length > LIMITS.treePathBytes) return true;
  }
  return false;
}

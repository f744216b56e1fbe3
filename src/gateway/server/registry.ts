/** Open sessions by everything that can name them, and those that are over, as long as they are remembered. */
import { LIMITS } from "../../core/limits.ts";
import { GatewayFailure } from "../failure.ts";
import type { Session } from "../session/session.ts";
import { isToken } from "./credentials.ts";

export interface Asker {
  /** The machine that the connection comes from; null: from this host. */
  readonly sandbox: string | null;
  /** Id or token in the path. */
  readonly path: string | null;
  /** In the place of an API key. */
  readonly keys: readonly string[];
}

export class SessionRegistry {
  /** By id and by token. */
  readonly #names = new Map<string, Session>();
  readonly #sandboxes = new Map<string, Set<Session>>();
  readonly #over = new Set<string>();
  readonly #overSandboxes = new Set<string>();

  get sessions(): readonly Session[] {
    return [...new Set(this.#names.values())];
  }

  /** Whether a name is, or was, a session's. */
  knows(name: string): boolean {
    return this.#names.has(name) || this.#over.has(name);
  }

  add(session: Session): void {
    for (const name of [session.id, session.token]) this.#names.set(name, session);
    const { sandbox } = session.options;
    if (sandbox === null) return;
    const there = this.#sandboxes.get(sandbox) ?? new Set();
    this.#sandboxes.set(sandbox, there.add(session));
  }

  /** From now on the session is over. */
  remove(session: Session): void {
    for (const name of [session.id, session.token]) {
      this.#names.delete(name);
      remember(this.#over, name);
    }
    const { sandbox } = session.options;
    if (sandbox === null) return;
    const there = this.#sandboxes.get(sandbox);
    there?.delete(session);
    if (there?.size !== 0) return;
    this.#sandboxes.delete(sandbox);
    remember(this.#overSandboxes, sandbox);
  }

  /**
   * The session of a request, by its token, its path and its machine, which must not contradict each other. A path names a session without proving anything: it is enough
   * only from the session's own machine. Throws `unauthorized`, or `closed` for a session that is over.
   */
  find(asker: Asker): Session {
    const named = [...(asker.path === null ? [] : [asker.path]), ...asker.keys.filter((key) => isToken(key) || this.#names.has(key))];
    for (const name of named) if (this.#over.has(name)) throw new GatewayFailure("closed", "The session is closed.");
    const sessions = new Set(named.map((name) => this.#names.get(name)));
    if (sessions.has(undefined)) throw new GatewayFailure("unauthorized", "This token or path names no session.");
    if (sessions.size > 1) throw new GatewayFailure("unauthorized", "Token and path name different sessions.");
    const [session] = sessions;
    if (session === undefined) return this.#ofSandbox(asker.sandbox);
    const proven = named.includes(session.token);
    const { sandbox } = session.options;
    // The token alone is enough from this host; from a machine it must be that machine's, or nobody's.
    if (asker.sandbox === null ? !proven : sandbox === null ? !proven : sandbox !== asker.sandbox) {
      throw new GatewayFailure("unauthorized", asker.sandbox === null ? "A session needs its token where the API key would be." : "This session belongs to another machine.");
    }
    return session;
  }

  #ofSandbox(sandbox: string | null): Session {
    if (sandbox === null) throw new GatewayFailure("unauthorized", "Put the session's token where the API key would be.");
    const there = [...(this.#sandboxes.get(sandbox) ?? [])];
    const [only, second] = there;
    if (only === undefined) throw this.#overSandboxes.has(sandbox) ? new GatewayFailure("closed", "The session is closed.") : new GatewayFailure("unauthorized", "This machine has no session.");
    if (second !== undefined) throw new GatewayFailure("unauthorized", "This machine has several sessions; name one by token or path.");
    return only;
  }
}

/** The newest so many. */
function remember(names: Set<string>, name: string): void {
  names.add(name);
  for (const oldest of names) {
    if (names.size <= LIMITS.closedSessionsKnown) break;
    names.delete(oldest);
  }
}

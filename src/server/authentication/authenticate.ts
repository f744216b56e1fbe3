/** Who asks: the owner of the key that comes with a request, or, where no key comes, the local owner if it is certain that it is him. */
import type { IncomingMessage } from "node:http";
import type { Socket } from "node:net";
import { MwError } from "../../core/errors.ts";
import type { Owner } from "../services.ts";
import { LOCAL_OWNER, type KeyRing } from "./keys.ts";
import { userOfPeer } from "./peer-user.ts";
import { foreignness } from "./same-site.ts";

export class Authenticator {
  readonly #keys: KeyRing;
  /** User whose processes need no key; null where every request needs one. */
  readonly #user: number | null;
  readonly #peers = new WeakMap<Socket, number>();

  constructor(keys: KeyRing, options: { readonly keylessUser: number | null }) {
    this.#keys = keys;
    this.#user = options.keylessUser;
  }

  /** Throws `unauthorized`. A wrong key is never overlooked. */
  ownerOf(request: IncomingMessage): Owner {
    const key = keyOf(request);
    if (key !== null) {
      const owner = this.#keys.ownerOf(key);
      if (owner === null) throw new MwError("unauthorized", "the key is not one of this server's", { fix: FIX });
      return owner;
    }
    if (this.#user === null) throw new MwError("unauthorized", "the request has no key", { fix: FIX });
    const foreign = foreignness(request);
    if (foreign !== null) throw new MwError("unauthorized", `the request has no key, and ${foreign}`, { fix: FIX });
    if (this.#userOf(request.socket) !== this.#user) throw new MwError("unauthorized", "the request has no key, and comes from a process of another user", { fix: FIX });
    return LOCAL_OWNER;
  }

  #userOf(socket: Socket): number | null {
    const known = this.#peers.get(socket);
    if (known !== undefined) return known;
    const user = userOfPeer(socket);
    if (user !== null) this.#peers.set(socket, user);
    return user;
  }
}

const FIX = "send Authorization: Bearer KEY or X-API-Key: KEY; the server said at its start where its key is";

/** The key that a request presents; a malformed one is a wrong one. */
export function keyOf({ headers }: IncomingMessage): string | null {
  const named = headers["x-api-key"];
  if (named !== undefined) return String(named);
  const { authorization } = headers;
  if (authorization !== undefined) return /^Bearer +(\S+)$/i.exec(authorization)?.[1] ?? "";
  const offered = /(?:^|,)\s*mw\.key\.([\w-]+)/.exec(headers["sec-websocket-protocol"] ?? "")?.[1];
  return offered ?? null;
}

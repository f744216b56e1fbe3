/**
 * The name that a TLS client asks for, read from its first message (ClientHello, RFC 8446 section 4.1.2; server_name, RFC 6066) without taking part in the conversation. What
 * could be read in two ways is refused, so that the server cannot read another name than we did.
 */
export type ServerName =
  /** Not all of it is there yet. */
  | { readonly kind: "partial" }
  /** `name` as it stands there; null when the client names none. */
  | { readonly kind: "read"; readonly name: string | null }
  | { readonly kind: "refused"; readonly why: string };

const HANDSHAKE = 22;
const CLIENT_HELLO = 1;
const SERVER_NAME = 0;
const MOST_BYTES = 32 * 1024;
const MOST_RECORDS = 16;

class Malformed extends Error {}

/** `bytes` from the client's first on. */
export function readServerName(bytes: Buffer): ServerName {
  if (bytes.length > 0 && bytes[0] !== HANDSHAKE) return { kind: "refused", why: "what the client sends is not TLS" };
  const hello = handshake(bytes);
  if (hello === "partial") return bytes.length > MOST_BYTES + MOST_RECORDS * 5 ? { kind: "refused", why: "its first TLS message is too long" } : { kind: "partial" };
  if (hello === "malformed") return { kind: "refused", why: "its first TLS message is malformed" };
  try {
    return { kind: "read", name: serverName(hello) };
  } catch (error) {
    if (!(error instanceof Malformed)) throw error;
    return { kind: "refused", why: error.message };
  }
}

/** The body of the first handshake message, put together from its records. */
function handshake(bytes: Buffer): Buffer | "partial" | "malformed" {
  let message: Buffer = Buffer.alloc(0);
  let at = 0;
  for (let records = 0; records < MOST_RECORDS; records++) {
    if (bytes.length < at + 5) return "partial";
    const length = bytes.readUInt16BE(at + 3);
    if (bytes[at] !== HANDSHAKE || bytes[at + 1] !== 3 || length === 0 || length > 1 << 14) return "malformed";
    if (bytes.length < at + 5 + length) return "partial";
    message = Buffer.concat([message, bytes.subarray(at + 5, at + 5 + length)]);
    at += 5 + length;
    if (message[0] !== CLIENT_HELLO) return "malformed";
    if (message.length < 4) continue;
    const size = message.readUIntBE(1, 3);
    if (size > MOST_BYTES || message.length > 4 + size) return "malformed";
    if (message.length === 4 + size) return message.subarray(4);
  }
  return "malformed";
}

function serverName(hello: Buffer): string | null {
  const reader = new Reader(hello);
  // Version and random.
  reader.take(34);
  // Session id, cipher suites, compression methods.
  reader.vector(1);
  reader.vector(2);
  reader.vector(1);
  if (reader.over) return null;
  const extensions = new Reader(reader.vector(2));
  if (!reader.over) throw new Malformed("its first TLS message has more than it says");
  let name: string | null = null;
  while (!extensions.over) {
    const type = extensions.take(2).readUInt16BE();
    const data = extensions.vector(2);
    if (type !== SERVER_NAME) continue;
    if (name !== null) throw new Malformed("its first TLS message names two servers");
    const list = new Reader(new Reader(data).vector(2));
    const kind = list.take(1)[0];
    const bytes = list.vector(2);
    if (kind !== 0 || !list.over || bytes.length === 0) throw new Malformed("its first TLS message names a server in an unknown way");
    name = bytes.toString("latin1");
  }
  return name;
}

class Reader {
  readonly #bytes: Buffer;
  #at = 0;

  constructor(bytes: Buffer) {
    this.#bytes = bytes;
  }

  get over(): boolean {
    return this.#at === this.#bytes.length;
  }

  take(length: number): Buffer {
    const part = this.#bytes.subarray(this.#at, this.#at + length);
    if (part.length < length) throw new Malformed("its first TLS message is malformed");
    this.#at += length;
    return part;
  }

  /** With its length before it, in so many bytes. */
  vector(lengthBytes: number): Buffer {
    return this.take(this.take(lengthBytes).readUIntBE(0, lengthBytes));
  }
}

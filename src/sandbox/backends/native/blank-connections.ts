/**
 * Connections to the inits of blanks, made while nothing waits for them: a machine that is made of one is connected already, and its first command is read as
 * soon as it has a root. Connecting would cost more than the rest of starting a command.
 */
import { InitConnection } from "./init-connection.ts";
import type { Spawner } from "./spawner.ts";

export class BlankConnections {
  readonly #connected = new Map<string, InitConnection>();
  readonly #connecting = new Set<string>();

  constructor(spawner: Spawner) {
    spawner.onBlank((blank) => void this.#connect(spawner, blank));
  }

  /** The connection to what was this blank, the caller's from now on; null when there is none. */
  take(blank: string): InitConnection | null {
    const connection = this.#connected.get(blank) ?? null;
    this.#connected.delete(blank);
    this.#connecting.delete(blank);
    return connection;
  }

  async #connect(spawner: Spawner, blank: string): Promise<void> {
    this.#connecting.add(blank);
    // One that was taken a moment ago is found under its new name, and one that died not at all.
    const connection = await InitConnection.connect(spawner.blankSocket(blank)).catch(() => null);
    const wanted = this.#connecting.delete(blank);
    if (connection === null) return;
    if (!wanted) {
      connection.close();
      return;
    }
    this.#connected.set(blank, connection);
    await connection.closed;
    if (this.#connected.get(blank) === connection) this.#connected.delete(blank);
  }
}

/** File access in a sandbox, and trees that go in and out. */

export interface FileStat {
  /** Bytes of the name; names need not be UTF-8. */
  readonly path: Uint8Array;
  readonly type: "file" | "directory" | "symlink" | "fifo" | "socket" | "device";
  readonly mode: number;
  readonly uid: number;
  readonly gid: number;
  readonly size: number;
  /** Nanoseconds since the epoch. */
  readonly mtimeNs: bigint;
  /** Target of a symlink. */
  readonly target: Uint8Array | null;
  /** Extended attributes in `user.`, of files and directories, as text; where the backend tells them. */
  readonly attributes?: Readonly<Record<string, string>>;
}

/** A path inside the sandbox, absolute; as bytes where it is not UTF-8. */
export type SandboxPath = string | Uint8Array;

export interface TreeReport {
  readonly entries: number;
  readonly bytes: number;
  /** Entries that were not transferred, with the reason: devices, escapes, over a limit. Never silent. */
  readonly refused: readonly { readonly path: string; readonly reason: string }[];
}

export interface TreeOptions {
  /** Owner given to everything uploaded, `name` or `uid:gid`; default root. */
  readonly owner?: string;
  /** Of `copyTo`: everything keeps the owner that it has, as numbers, and `owner` is for nothing but a missing target directory. */
  readonly keepOwners?: boolean;
  /** Mode given to every file and every new directory that goes into a sandbox. */
  readonly mode?: number;
  /** Names or paths (glob with `*` within one segment, `**` across) left out. */
  readonly exclude?: readonly string[];
  readonly maxBytes?: number;
  /** Of `download`: files, directories and links. */
  readonly maxEntries?: number;
  readonly signal?: AbortSignal;
}

/** What `files.write` makes is seen once it is there: created, then modified. `cause`, where the backend tells it: only mode, owner or attributes changed; it was moved away. */
export type FileEvent = { readonly kind: "created" | "modified" | "removed" | "overflow"; readonly path: Uint8Array; readonly cause?: "attributes" | "moved" };

export interface WriteOptions {
  readonly mode?: number;
  readonly owner?: string;
  /** Extended attributes in `user.`; those that a file had before are gone with it. */
  readonly attributes?: Readonly<Record<string, string>>;
}

/** File access, carried out inside the sandbox: paths and links resolve there and cannot reach the host. */
export interface SandboxFiles {
  read(path: SandboxPath, options?: { readonly maxBytes?: number; readonly user?: string }): Promise<Uint8Array>;
  /** Writes a regular file, making parent directories; an existing link at the path is replaced, never followed. It appears whole, or, when the data break off, not at all. */
  write(path: SandboxPath, data: Uint8Array | string | AsyncIterable<Uint8Array>, options?: WriteOptions): Promise<void>;
  /** The same as `read`, in pieces, with back-pressure and without a bound. Ending the iteration early ends the transfer. */
  readStream(path: SandboxPath, options?: { readonly user?: string }): AsyncIterable<Uint8Array>;
  list(path: SandboxPath): Promise<readonly FileStat[]>;
  /** Does not follow a link at the last component. Null when nothing is there. */
  stat(path: SandboxPath): Promise<FileStat | null>;
  mkdir(path: SandboxPath, options?: { readonly mode?: number; readonly owner?: string }): Promise<void>;
  move(from: SandboxPath, to: SandboxPath): Promise<void>;
  /** Removes a file or a whole tree, never following links, also when made immutable or append-only. Nothing there is no error. */
  remove(path: SandboxPath): Promise<void>;
  /** Merges a host directory (or file) into `to`: modes, links, empty directories, names of any bytes. */
  upload(from: string, to: SandboxPath, options?: TreeOptions): Promise<TreeReport>;
  /**
   * Makes the machine's files what they were where a layer archive was made of them, over the same image: what it removes is removed, the rest put in place with owners, modes and
   * times. Extended attributes, devices and sockets are refused by name.
   */
  applyLayer(archive: string, options?: { readonly signal?: AbortSignal }): Promise<TreeReport>;
  /**
   * Copies a tree out to a host directory that does not exist yet. Links are recreated only where they stay inside; nothing outside `to` is written,
   * whatever the sandbox sends.
   */
  download(from: SandboxPath, to: string, options?: TreeOptions): Promise<TreeReport>;
  /** Copies a tree straight into another sandbox, links as they are: nothing of it touches the host's file system. */
  copyTo(target: SandboxFiles, from: SandboxPath, to: SandboxPath, options?: TreeOptions): Promise<TreeReport>;
  /** `onReady` is called once nothing is missed any more. */
  watch(path: SandboxPath, options?: { readonly recursive?: boolean; readonly signal?: AbortSignal; readonly onReady?: () => void }): AsyncIterable<FileEvent>;
}

/**
 * The error catalogue: every failure that a user or a caller can meet has one code here, with its exit code, its HTTP status and whether trying again can help.
 *
 * Expected failures inside the product are values; this class is for what crosses a module or process boundary. The message says what was attempted, on
 * what, and why it failed; `fix` says what to do about it.
 */
export const ERROR_CATALOGUE = {
  /** A flag, argument or combination of them that makes no sense. */
  usage: { exitCode: 2, status: 400, retryable: false },
  /** A file or directory given as input is missing or malformed. */
  invalid_input: { exitCode: 2, status: 422, retryable: false },
  /** A task directory that cannot be honoured as it is written. */
  invalid_task: { exitCode: 2, status: 422, retryable: false },
  /** An image reference, archive or Dockerfile that cannot be used. */
  invalid_image: { exitCode: 2, status: 422, retryable: false },
  /** Something named does not exist (run, rollout, sandbox, image, file in a sandbox). */
  not_found: { exitCode: 2, status: 404, retryable: false },
  /** The thing exists already, or changed under the caller. */
  conflict: { exitCode: 2, status: 409, retryable: false },
  /** The backend or host cannot do what the request needs; nothing was started. */
  unsupported: { exitCode: 3, status: 422, retryable: false },
  /** The host lacks something that can be installed or switched on; `fix` names it. */
  environment: { exitCode: 3, status: 503, retryable: false },
  /** Another controller owns the data directory. */
  busy: { exitCode: 3, status: 503, retryable: true },
  /** The host has no room: memory, disk, processes, file descriptors. */
  host_exhausted: { exitCode: 3, status: 503, retryable: true },
  /** A sandbox died or its machinery failed. */
  sandbox_failed: { exitCode: 1, status: 502, retryable: true },
  /** The sandbox is gone: killed, expired or never there. */
  sandbox_gone: { exitCode: 1, status: 410, retryable: false },
  /** The sandbox is paused: it has no machine until it is resumed. */
  sandbox_paused: { exitCode: 1, status: 409, retryable: false },
  /** A step of an image build or pull failed. */
  image_failed: { exitCode: 1, status: 422, retryable: false },
  /** The upstream model server failed or answered nonsense. */
  upstream_failed: { exitCode: 3, status: 502, retryable: true },
  /** A registry refused or was unreachable. */
  registry_failed: { exitCode: 1, status: 502, retryable: true },
  /** A request without a key, or with one that is none. */
  unauthorized: { exitCode: 3, status: 401, retryable: false },
  /** Known who asks, but not allowed to. */
  forbidden: { exitCode: 3, status: 403, retryable: false },
  /** More is asked for than is taken at once; later there is room. */
  overloaded: { exitCode: 3, status: 429, retryable: true },
  /** What somebody may keep on the disk is used up; it is theirs to make room. */
  quota_exceeded: { exitCode: 3, status: 507, retryable: false },
  /** A deadline passed. */
  timeout: { exitCode: 1, status: 504, retryable: true },
  /** The caller asked to stop. */
  cancelled: { exitCode: 130, status: 503, retryable: false },
  /** A limit of `core/limits.ts` was exceeded. */
  limit_exceeded: { exitCode: 1, status: 422, retryable: false },
  /** Data on disk contradicts itself. */
  corrupt: { exitCode: 1, status: 500, retryable: false },
  /** A bug of ours. */
  internal: { exitCode: 1, status: 500, retryable: false },
} as const;

export type ErrorCode = keyof typeof ERROR_CATALOGUE;

export interface ErrorDetails {
  /** What the reader can do about it: a command, a setting, a corrected value. */
  readonly fix?: string;
  readonly cause?: unknown;
  /** Machine-readable facts: paths, field names, numbers. Never secrets. */
  readonly facts?: Readonly<Record<string, string | number | boolean | null>>;
}

export class MwError extends Error {
  readonly code: ErrorCode;
  readonly fix: string | undefined;
  readonly facts: Readonly<Record<string, string | number | boolean | null>>;

  constructor(code: ErrorCode, message: string, details: ErrorDetails = {}) {
    super(message, details.cause === undefined ? undefined : { cause: details.cause });
    this.name = "MwError";
    this.code = code;
    this.fix = details.fix;
    this.facts = details.facts ?? {};
  }

  get exitCode(): number {
    return ERROR_CATALOGUE[this.code].exitCode;
  }

  /** Of the answer to a request that failed so. */
  get status(): number {
    return ERROR_CATALOGUE[this.code].status;
  }

  get retryable(): boolean {
    return ERROR_CATALOGUE[this.code].retryable;
  }
}

/** Narrows an unknown rejection to the catalogue; anything else is a bug of ours and becomes `internal`. */
export function toMwError(error: unknown): MwError {
  if (error instanceof MwError) return error;
  if (error instanceof Error) return fileSystemError(error) ?? new MwError("internal", error.message, { cause: error });
  return new MwError("internal", String(error));
}

const FILE_SYSTEM_FIXES: Readonly<Record<string, string>> = {
  EACCES: "make it accessible to this user, or name another data directory in MW_HOME",
  EPERM: "make it accessible to this user, or name another data directory in MW_HOME",
  EROFS: "make it writable, or name another data directory in MW_HOME",
  ENOSPC: "free some space (mw image gc), or name a data directory on a larger file system in MW_HOME",
  EDQUOT: "free some space (mw image gc), or name a data directory on a larger file system in MW_HOME",
  ENOTDIR: "a file is where a directory has to be: move it away, or name another data directory in MW_HOME",
};

/** What the file system refuses wherever we write is the host's state, no bug. */
function fileSystemError(error: NodeJS.ErrnoException): MwError | null {
  const { code, path } = error;
  if (code === undefined || path === undefined) return null;
  // A directory is made with its parents, which bothers nobody when it is there; a file in its place does.
  const fix = FILE_SYSTEM_FIXES[code === "EEXIST" && error.syscall === "mkdir" ? "ENOTDIR" : code];
  return fix === undefined ? null : new MwError("environment", error.message, { cause: error, fix });
}

/** Whether it was refused for want of bytes or inodes on a disk, here or in a helper. */
export function isDiskFull(error: unknown): boolean {
  const code = error instanceof MwError ? error.facts["errno"] : (error as NodeJS.ErrnoException | null)?.code;
  return code === "ENOSPC" || code === "EDQUOT";
}

/** The message of anything thrown, for embedding in another message. */
export function messageOf(error: unknown): string {
  return error instanceof Error ? error.message : String(error);
}

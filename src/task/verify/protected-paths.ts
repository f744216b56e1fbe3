/**
 * Places of a Linux machine that decide what a verifier's commands mean: which program a name finds, which code a program loads. Data with reasons; the rules that
 * use it are in `sanitation.ts`.
 */

/** Never part of a workspace that is verified: injected later, or about the living machine. */
export const NEVER_KEPT = ["/tests", "/solution", "/logs/verifier", "/run", "/dev", "/proc", "/sys", "/.mw"] as const;

export const DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/** Where the distribution's package manager puts programs: new names in them come from packages. */
export const DISTRIBUTION_BINS = ["/usr/sbin", "/usr/bin", "/sbin", "/bin"] as const;

/** Trees of libraries and interpreters: what the image had in them is what the verifier runs on. */
export const LIBRARY_TREES = [
  "/lib",
  "/lib32",
  "/lib64",
  "/libx32",
  "/usr/lib",
  "/usr/lib32",
  "/usr/lib64",
  "/usr/libexec",
  "/usr/local/lib",
  "/usr/local/lib64",
  "/usr/local/libexec",
  "/usr/share/perl",
  "/usr/share/perl5",
  "/usr/share/python3",
  "/usr/share/nodejs",
  "/usr/share/ruby",
  "/usr/share/rubygems-integration",
  "/usr/share/dpkg",
] as const;

/** Scripts of packages that run as root when the verifier installs something. */
export const PACKAGE_SCRIPTS = /^\/var\/lib\/dpkg\/info\/[^/]+\.(?:preinst|postinst|prerm|postrm|config|triggers)$/;

/** Made anew from the image's and the packages' libraries, so that dropping the agent's says nothing about the agent. */
export const LOADER_CACHE = "/etc/ld.so.cache";

/** Files that inject code or redirect names. Restored when the image had them, taken away when it had not. `/**` is a tree. */
export const INJECTING_CONFIG = [
  // Loader: libraries for every program.
  "/etc/ld.so.preload",
  "/etc/ld.so.cache",
  "/etc/ld.so.conf",
  "/etc/ld.so.conf.d/**",
  "/etc/ld-musl-x86_64.path",
  "/etc/ld-musl-aarch64.path",
  // Name service: libraries for every program that looks up a user or host.
  "/etc/nsswitch.conf",
  // Shells: code for every login or interactive shell.
  "/etc/environment",
  "/etc/profile",
  "/etc/profile.d/**",
  "/etc/bash.bashrc",
  "/etc/bashrc",
  "/etc/zsh/**",
  // Interpreters and the tools with which verifiers fetch what they need.
  "/etc/perl/**",
  "/etc/pip.conf",
  "/etc/uv/**",
  "/etc/wgetrc",
  "/etc/npmrc",
  "/usr/local/etc/npmrc",
  "/etc/apt/apt.conf",
  "/etc/apt/apt.conf.d/**",
  // Can name an engine library to load.
  "/etc/ssl/openssl.cnf",
] as const;

/** The same, below a home directory. */
export const INJECTING_HOME_CONFIG = [
  ".bashrc",
  ".bash_profile",
  ".bash_login",
  ".bash_aliases",
  ".bash_logout",
  ".profile",
  ".zshrc",
  ".zshenv",
  ".zprofile",
  ".pam_environment",
  ".curlrc",
  ".config/curlrc",
  ".wgetrc",
  ".npmrc",
  ".pydistutils.cfg",
  ".pip/**",
  ".config/pip/**",
  ".config/uv/**",
  // Caches from which a verifier would install what the agent prepared.
  ".cache/uv/**",
  ".cache/pip/**",
  ".local/share/uv/tools/**",
  ".local/bin/env",
] as const;

/** Programs with which verifiers get their own tools; planted ones outside of the distribution's directories would be found first. */
export const BOOTSTRAP_TOOLS: ReadonlySet<string> = new Set(["curl", "wget", "uv", "uvx", "pip", "pip3", "pytest", "py.test"]);

/** Interpreters and tools that are never the agent's work, even when the instruction names their path. */
export const NEVER_OWNED =
  /^(?:sh|bash|dash|ash|zsh|busybox|env|python[\d.]*|pip[\d.]*|pytest|py\.test|uv|uvx|perl[\d.]*|ruby[\d.]*|gem|node|nodejs|npm|npx|yarn|java|go|cargo|rustc|gcc|cc|g\+\+|make|git|curl|wget|apt|apt-get|dpkg|ldd|ldconfig|which|sudo|su|cat|ls|cp|mv|rm|grep|sed|awk|find|test|diff|cmp|jq|sort|head|tail|tr|wc|stat|timeout|echo|printf|true|false)$/;

/** Modules that, beside the program that is tested, would be loaded in place of the test runner's own. */
export const RUNNER_MODULES: ReadonlySet<string> = new Set(["pytest", "_pytest", "pluggy", "iniconfig", "unittest", "doctest"]);

/** Files in which pytest looks for its configuration; the pattern finds the part that it reads. */
export const PYTEST_CONFIGS: ReadonlyMap<string, RegExp> = new Map([
  ["pytest.ini", /^[\s\S]*$/],
  [".pytest.ini", /^[\s\S]*$/],
  ["pytest.toml", /^[\s\S]*$/],
  [".pytest.toml", /^[\s\S]*$/],
  ["tox.ini", /^\[pytest\][^[]*/m],
  ["setup.cfg", /^\[tool:pytest\][^[]*/m],
  ["pyproject.toml", /^\s*\[\s*tool\s*\.\s*pytest[\s\S]*?(?=^\s*\[(?!\s*tool\s*\.\s*pytest)|$(?![\s\S]))/m],
]);

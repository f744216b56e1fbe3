/** The entry point of the `mw` program. */
import { runCli } from "./run-cli.ts";

// A reader that went away (`mw show RUN | head`) is no failure of ours.
for (const stream of [process.stdout, process.stderr]) {
  stream.on("error", (error: NodeJS.ErrnoException) => {
    if (error.code !== "EPIPE") throw error;
  });
}

const code = await runCli(process.argv.slice(2), {
  stdout: process.stdout,
  stderr: process.stderr,
  env: process.env,
  cwd: process.cwd(),
  onInterrupt: (listener) => {
    const onSignal = (signal: NodeJS.Signals): void => listener(signal === "SIGTERM" ? "SIGTERM" : "SIGINT");
    process.on("SIGINT", onSignal);
    process.on("SIGTERM", onSignal);
    return () => {
      process.off("SIGINT", onSignal);
      process.off("SIGTERM", onSignal);
    };
  },
});

// Idle connections to an upstream must not hold the terminal; what was printed is out before the end.
if (process.stdout.writableLength > 0) await new Promise((resolve) => process.stdout.once("drain", resolve).once("error", resolve));
process.exit(code);

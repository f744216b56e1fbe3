// What the demonstration wants beyond a compiler: installed where that is possible, else named. Nothing of it is needed for machines of the `host` image.
import { ensurePrograms } from "./toolchain.mjs";

if (process.platform === "linux") ensurePrograms({ mmdebstrap: "mmdebstrap", slirp4netns: "slirp4netns", newuidmap: "uidmap" });

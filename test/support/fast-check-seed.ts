/** The examples of property tests are the same in every run, so that one that fails fails again. `MW_FC_SEED` draws others. */
import { configureGlobal } from "fast-check";

configureGlobal({ seed: Number(process.env["MW_FC_SEED"] ?? 20_260_101) });

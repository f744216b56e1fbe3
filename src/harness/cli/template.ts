/** The placeholders of a descriptor's texts: `{name}`, replaced in one pass, so that nothing in a value is read as a template again. */
import { MwError } from "../../core/errors.ts";

export interface TemplateValues {
  /** The installation, in the sandbox. */
  readonly root: string;
  /** The Node that the CLI runs on. */
  readonly node: string;
  /** The Python that the CLI runs on. */
  readonly python: string;
  /** As npm names it: `linux-x64`. */
  readonly platform: string;
  /** As Rust names it: `x86_64-unknown-linux-musl`. */
  readonly triple: string;
  /** The CLI's own directory: configuration, session logs. Not the user's home. */
  readonly home: string;
  /** Of the model API, without a path: `http://127.0.0.1:PORT`. */
  readonly baseUrl: string;
  readonly token: string;
  readonly model: string;
  /** The model's window. */
  readonly contextTokens: number;
  /** The longest answer to configure where a CLI wants one. */
  readonly outputTokens: number;
  /** A UUID drawn from the rollout's seed. */
  readonly uuid: string;
  readonly instruction: string;
}

const PLACEHOLDER = /\{([a-z][A-Za-z]*)\}/g;

export function render(template: string, values: TemplateValues): string {
  return template.replaceAll(PLACEHOLDER, (_all, name: string) => String(valueOf(name, template, values)));
}

/** The same for every text in a document. A text that is one placeholder takes the value's own type. */
export function renderDocument(document: unknown, values: TemplateValues): unknown {
  if (typeof document === "string") {
    const whole = /^\{([a-z][A-Za-z]*)\}$/.exec(document)?.[1];
    return whole === undefined ? render(document, values) : valueOf(whole, document, values);
  }
  if (Array.isArray(document)) return document.map((item) => renderDocument(item, values));
  if (typeof document !== "object" || document === null) return document;
  return Object.fromEntries(Object.entries(document).map(([key, value]) => [render(key, values), renderDocument(value, values)]));
}

function valueOf(name: string, template: string, values: TemplateValues): string | number {
  if (!Object.hasOwn(values, name)) throw new MwError("internal", `a descriptor has the unknown placeholder {${name}} in ${JSON.stringify(template)}`);
  return values[name as keyof TemplateValues];
}

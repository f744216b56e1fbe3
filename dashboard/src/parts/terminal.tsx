/**
 * The one place that interprets control sequences. xterm writes style sheets as style elements, which the page's policy does not allow; they are made as constructed sheets instead, which
 * only scripts of ours can make.
 */
import { FitAddon } from "@xterm/addon-fit";
import { Terminal } from "@xterm/xterm";
import "@xterm/xterm/css/xterm.css";

export interface OpenTerminal {
  readonly terminal: Terminal;
  readonly fit: () => void;
  readonly close: () => void;
}

export function openTerminal(place: HTMLElement, options: { readonly interactive: boolean }): OpenTerminal {
  const sheets: CSSStyleSheet[] = [];
  const terminal = new Terminal({
    convertEol: !options.interactive,
    disableStdin: !options.interactive,
    cursorBlink: options.interactive,
    cursorInactiveStyle: options.interactive ? "outline" : "none",
    fontFamily: 'ui-monospace, "SF Mono", "JetBrains Mono", Menlo, Consolas, "DejaVu Sans Mono", monospace',
    fontSize: 13,
    scrollback: 20_000,
    screenReaderMode: true,
    theme: { background: "#14151b", foreground: "#e6e7ee", cursor: "#a5a3ff" },
    documentOverride: styledBySheets(document, sheets),
    // Titles, links and the clipboard are nothing that an agent may touch.
    linkHandler: { activate: () => undefined },
    windowOptions: {},
  });
  const fitter = new FitAddon();
  terminal.loadAddon(fitter);
  terminal.parser.registerOscHandler(52, () => true);
  terminal.parser.registerOscHandler(0, () => true);
  terminal.parser.registerOscHandler(2, () => true);
  terminal.parser.registerOscHandler(8, () => true);
  openStyled(terminal, place, sheets);
  const observer = new ResizeObserver(() => fitter.fit());
  observer.observe(place);
  return {
    terminal,
    fit: () => fitter.fit(),
    close: () => {
      observer.disconnect();
      terminal.dispose();
      document.adoptedStyleSheets = document.adoptedStyleSheets.filter((sheet) => !sheets.includes(sheet));
    },
  };
}

/** Parts of xterm ask the global document while it opens. */
function openStyled(terminal: Terminal, place: HTMLElement, sheets: CSSStyleSheet[]): void {
  const styled = styledBySheets(document, sheets);
  const create = document.createElement.bind(document);
  document.createElement = ((tag: string, given?: ElementCreationOptions) => (tag === "style" ? styled.createElement(tag, given) : create(tag, given))) as typeof document.createElement;
  try {
    terminal.open(place);
  } finally {
    Reflect.deleteProperty(document, "createElement");
  }
}

/** The document, but with style elements whose text becomes a constructed sheet. */
function styledBySheets(real: Document, sheets: CSSStyleSheet[]): Document {
  return new Proxy(real, {
    get(target, name) {
      if (name === "createElement") {
        return (tag: string, given?: ElementCreationOptions): HTMLElement => {
          if (tag !== "style") return target.createElement(tag, given);
          // Stands where the style element would, and is neither drawn nor a style.
          const element = Document.prototype.createElement.call(target, "template");
          const sheet = new CSSStyleSheet();
          sheets.push(sheet);
          target.adoptedStyleSheets = [...target.adoptedStyleSheets, sheet];
          const use = (text: string | null): void => sheet.replaceSync(text ?? "");
          Object.defineProperty(element, "textContent", { set: use, get: () => "" });
          Object.defineProperty(element, "innerText", { set: use, get: () => "" });
          return element;
        };
      }
      const value: unknown = Reflect.get(target, name, target);
      return typeof value === "function" ? (value as (...args: unknown[]) => unknown).bind(target) : value;
    },
  });
}

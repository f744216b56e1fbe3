/** Numbers and times as people read them. */
export function duration(ms: number | null): string {
  if (ms === null || !Number.isFinite(ms)) return "–";
  if (ms < 1) return "0";
  if (ms < 1000) return `${Math.round(ms)} ms`;
  const s = ms / 1000;
  if (s < 60) return `${s < 10 ? s.toFixed(1) : Math.round(s)} s`;
  const whole = Math.round(s);
  const m = Math.floor(whole / 60);
  if (m < 60) return `${m} m ${String(whole % 60).padStart(2, "0")} s`;
  const h = Math.floor(m / 60);
  return h < 48 ? `${h} h ${String(m % 60).padStart(2, "0")} m` : `${Math.floor(h / 24)} d ${h % 24} h`;
}

export function count(value: number | null): string {
  if (value === null) return "–";
  if (Math.abs(value) < 100_000) return value.toLocaleString("en");
  return new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 }).format(value);
}

/** Two digits that say something, however small: $12.35, $0.0042. */
export function dollars(value: number | null): string {
  if (value === null) return "–";
  if (value === 0) return "$0";
  if (value >= 0.1) return `$${value.toLocaleString("en", { minimumFractionDigits: 2, maximumFractionDigits: 2 })}`;
  return `$${Number(value.toPrecision(2)).toLocaleString("en", { maximumFractionDigits: 12 })}`;
}

export function bytes(value: number): string {
  if (value < 1024) return `${value} B`;
  const units = ["KiB", "MiB", "GiB", "TiB"];
  let scaled = value / 1024;
  let unit = 0;
  while (scaled >= 1024 && unit < units.length - 1) {
    scaled /= 1024;
    unit++;
  }
  return `${scaled < 10 ? scaled.toFixed(1) : Math.round(scaled)} ${units[unit] ?? ""}`;
}

export function reward(value: number | null): string {
  if (value === null) return "–";
  return Number.isInteger(value) ? String(value) : Math.abs(value) < 0.001 ? value.toExponential(1) : value.toFixed(3).replace(/0+$/, "");
}

export function percent(value: number | null): string {
  if (value === null) return "–";
  return `${(100 * value).toFixed(value > 0 && value < 0.1 ? 1 : value > 0.995 && value < 1 ? 1 : 0)} %`;
}

/** Both ends of an interval of shares, as short as they can be said. */
export function interval({ low, high }: { readonly low: number; readonly high: number }): string {
  return `${Math.round(100 * low)}–${Math.round(100 * high)} %`;
}

export function clock(at: number | string): string {
  const date = new Date(at);
  return Number.isNaN(date.getTime()) ? "" : date.toLocaleTimeString("en-GB", { hour12: false });
}

export function moment(at: number | string | null): string {
  if (at === null) return "–";
  const date = new Date(at);
  return Number.isNaN(date.getTime()) ? "–" : `${date.toLocaleDateString("en-GB", { day: "numeric", month: "short", year: date.getFullYear() === new Date().getFullYear() ? undefined : "numeric" })} ${date.toLocaleTimeString("en-GB", { hour: "2-digit", minute: "2-digit" })}`;
}

export function ago(at: number | string | null, now: number): string {
  if (at === null) return "–";
  const ms = now - new Date(at).getTime();
  if (!Number.isFinite(ms)) return "–";
  if (ms < 5_000) return "now";
  if (ms < 60_000) return `${Math.floor(ms / 1000)} s ago`;
  if (ms < 3_600_000) return `${Math.floor(ms / 60_000)} min ago`;
  if (ms < 48 * 3_600_000) return `${Math.floor(ms / 3_600_000)} h ago`;
  return `${Math.floor(ms / 86_400_000)} days ago`;
}

/** Ids begin with their kind and the time; the end tells them apart. */
export function shortId(id: string): string {
  return id.length > 14 ? `${/^[a-z]{2,4}(?=[0-9])/.exec(id)?.[0] ?? ""}…${id.slice(-6)}` : id;
}

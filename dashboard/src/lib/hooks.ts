/** What pages share: data, the address as state, keys, the time. */
import { keepPreviousData, useQuery, useQueryClient, type UseQueryResult } from "@tanstack/react-query";
import { useCallback, useEffect, useRef, useState } from "react";
import { useLocation, useSearch } from "wouter";
import type { CallsUpdate, RolloutUpdate, RunUpdate, Site } from "../../../src/server/runs/contract/updates.ts";
import { getJson, type ApiError } from "./api.ts";
import { visible } from "./hostile.ts";
import { takeCalls, type LiveCall } from "./live-calls.ts";
import { follow } from "./stream.ts";

/** A document of the server. While another is fetched under the same kind of key the one before stays. */
export function useData<T>(path: string | null, options: { readonly refetchMs?: number; readonly version?: string | number | undefined } = {}): UseQueryResult<T, ApiError> {
  return useQuery<T, ApiError>({
    queryKey: [path, options.version ?? ""],
    queryFn: ({ signal }) => getJson<T>(path ?? "", signal),
    enabled: path !== null,
    placeholderData: keepPreviousData,
    ...(options.refetchMs === undefined ? {} : { refetchInterval: options.refetchMs }),
  });
}

export function useSite(): Site | null {
  return useQuery<Site, ApiError>({ queryKey: ["/v1/site"], queryFn: () => getJson<Site>("/v1/site"), staleTime: Infinity }).data ?? null;
}

/** A parameter of the address: reading it and replacing it. An empty value takes it out. */
export function useParam(name: string, fallback = ""): readonly [string, (value: string) => void] {
  const search = useSearch();
  const [location, navigate] = useLocation();
  const value = new URLSearchParams(search).get(name) ?? fallback;
  const set = useCallback(
    (next: string) => {
      // As it is now, which another parameter may have changed since this was drawn.
      const params = new URLSearchParams(window.location.search);
      if (next === "" || next === fallback) params.delete(name);
      else params.set(name, next);
      const text = params.toString();
      navigate(`${location}${text === "" ? "" : `?${text}`}`, { replace: true });
    },
    [name, fallback, location, navigate],
  );
  return [value, set];
}

export function useParams(): URLSearchParams {
  return new URLSearchParams(useSearch());
}

export type Link = "open" | "lost" | "ended" | "gone" | "none";

/** Follows a run. Updates come at most four times a second; `report` is fetched again at most once in two. */
export function useRunStream(run: string, enabled: boolean, onUpdate: (update: RunUpdate) => void): Link {
  const [link, setLink] = useState<Link>("none");
  const client = useQueryClient();
  const handler = useRef(onUpdate);
  handler.current = onUpdate;
  useEffect(() => {
    if (!enabled) return undefined;
    let timer: ReturnType<typeof setTimeout> | undefined;
    const refresh = (): void => {
      timer ??= setTimeout(() => {
        timer = undefined;
        void client.invalidateQueries({ predicate: ({ queryKey: [path] }) => typeof path === "string" && path.startsWith(`/v1/runs/${run}`) && !path.includes("/rollouts") });
      }, 2_000);
    };
    const stop = follow(`/v1/runs/${run}/stream`, {
      state: setLink,
      message: ({ event, data }) => {
        if (event !== "run") return;
        handler.current(data as RunUpdate);
        refresh();
      },
    });
    return () => {
      stop();
      clearTimeout(timer);
    };
  }, [run, enabled, client]);
  return link;
}

/** The state of a rollout's files, so that what shows them is fetched again when they change, and its model calls under way. */
export function useRolloutStream(rollout: string, enabled: boolean): { readonly update: RolloutUpdate | null; readonly calls: readonly LiveCall[]; readonly link: Link } {
  const [update, setUpdate] = useState<RolloutUpdate | null>(null);
  const [calls, setCalls] = useState<readonly LiveCall[]>([]);
  const [link, setLink] = useState<Link>("none");
  useEffect(() => {
    setUpdate(null);
    setCalls([]);
    if (!enabled) return undefined;
    return follow(`/v1/rollouts/${rollout}/stream`, {
      state: (state) => {
        setLink(state);
        // Whoever connects is told everything that is under way.
        if (state !== "lost") setCalls([]);
      },
      message: ({ event, data }) => {
        if (event === "rollout") setUpdate(data as RolloutUpdate);
        else if (event === "calls") setCalls((before) => takeCalls(before, data as CallsUpdate));
      },
    });
  }, [rollout, enabled]);
  return { update, calls, link };
}

/** The time, once a second while somebody looks. */
export function useNow(ms = 1_000): number {
  const [now, setNow] = useState(Date.now);
  useEffect(() => {
    const timer = setInterval(() => {
      if (!document.hidden) setNow(Date.now());
    }, ms);
    return () => clearInterval(timer);
  }, [ms]);
  return now;
}

/** Calls `handlers` by key, unless somebody types. `g r` is two keys after each other. */
export function useKeys(handlers: Readonly<Record<string, (() => void) | undefined>>): void {
  const current = useRef(handlers);
  current.current = handlers;
  useEffect(() => {
    let before = "";
    const listen = (event: KeyboardEvent): void => {
      const target = event.target as HTMLElement | null;
      if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented) return;
      if (target !== null && (/^(INPUT|TEXTAREA|SELECT)$/.test(target.tagName) || target.closest(".xterm") !== null)) {
        if (event.key === "Escape") target.blur();
        return;
      }
      const handler = current.current[`${before} ${event.key}`] ?? current.current[event.key];
      before = event.key;
      if (handler === undefined) return;
      event.preventDefault();
      handler();
    };
    document.addEventListener("keydown", listen);
    return () => document.removeEventListener("keydown", listen);
  }, []);
}

export function useTitle(title: string): void {
  useEffect(() => {
    document.title = title === "" ? "Manyworlds" : `${visible(title).text} · Manyworlds`;
  }, [title]);
}

/** A value that follows another one only when that has stood still. */
export function useSettled<T>(value: T, ms = 250): T {
  const [settled, setSettled] = useState(value);
  useEffect(() => {
    const timer = setTimeout(() => setSettled(value), ms);
    return () => clearTimeout(timer);
  }, [value, ms]);
  return settled;
}

/** The frame around every page: where to go, how it looks, which keys there are. */
import { Component, lazy, Suspense, useState, type ReactNode } from "react";
import { Link, Redirect, Route, Switch, useLocation } from "wouter";
import { useKeys, useSite } from "./lib/hooks.ts";
import { Empty, Failed, Skeleton } from "./parts/basics.tsx";
import { KeysSheet } from "./parts/keys-sheet.tsx";
import { RunsPage } from "./pages/runs.tsx";

const RunPage = lazy(async () => ({ default: (await import("./pages/run.tsx")).RunPage }));
const GroupPage = lazy(async () => ({ default: (await import("./pages/group.tsx")).GroupPage }));
const RolloutPage = lazy(async () => ({ default: (await import("./pages/rollout.tsx")).RolloutPage }));
const ComparePage = lazy(async () => ({ default: (await import("./pages/compare.tsx")).ComparePage }));
const TasksPage = lazy(async () => ({ default: (await import("./pages/tasks.tsx")).TasksPage }));
const TaskPage = lazy(async () => ({ default: (await import("./pages/task.tsx")).TaskPage }));
const TrainerPage = lazy(async () => ({ default: (await import("./pages/trainer.tsx")).TrainerPage }));
const SandboxesPage = lazy(async () => ({ default: (await import("./pages/sandboxes.tsx")).SandboxesPage }));

export function App(): ReactNode {
  const [keysShown, setKeysShown] = useState(false);
  const [location, navigate] = useLocation();
  useKeys({
    "?": () => setKeysShown(true),
    "g r": () => navigate("/runs"),
    "g t": () => navigate("/tasks"),
    "g d": () => navigate("/trainer"),
    "g s": () => navigate("/sandboxes"),
    "/": () => document.querySelector<HTMLInputElement>('input[type="search"]')?.focus(),
    T: toggleTheme,
    Escape: () => setKeysShown(false),
  });
  return (
    <div className="frame">
      <a className="skip" href="#content">Skip to the content</a>
      <Side onKeys={() => setKeysShown(true)} />
      <main className="main" id="content" tabIndex={-1}>
        <Boundary key={location}>
          <Suspense fallback={<Skeleton lines={6} />}>
            <Switch>
              <Route path="/runs" component={RunsPage} />
              <Route path="/compare" component={ComparePage} />
              <Route path="/runs/:run/groups/:group">{({ run, group }) => <GroupPage run={run} group={group} />}</Route>
              <Route path="/runs/:run/:view?">{({ run, view }) => <RunPage run={run} view={view ?? "overview"} />}</Route>
              <Route path="/rollouts/:rollout/:view?">{({ rollout, view }) => <RolloutPage rollout={rollout} view={view ?? "conversation"} />}</Route>
              <Route path="/tasks" component={TasksPage} />
              <Route path="/task" component={TaskPage} />
              <Route path="/trainer/:name?">{({ name }) => <TrainerPage name={name ?? null} />}</Route>
              <Route path="/sandboxes/:sandbox?">{({ sandbox }) => <SandboxesPage sandbox={sandbox ?? null} />}</Route>
              <Route path="/">
                <Redirect to="/runs" replace />
              </Route>
              <Route>
                <Empty title="There is no such page">
                  <Link className="link" href="/runs">To the runs</Link>
                </Empty>
              </Route>
            </Switch>
          </Suspense>
        </Boundary>
      </main>
      {keysShown && <KeysSheet onClose={() => setKeysShown(false)} />}
    </div>
  );
}

function Side({ onKeys }: { readonly onKeys: () => void }): ReactNode {
  const site = useSite();
  const [location] = useLocation();
  const item = (href: string, name: string, also: readonly string[], icon: ReactNode): ReactNode => (
    <Link className="nav" href={href} aria-current={[href, ...also].some((start) => location === start || location.startsWith(`${start}/`)) ? "page" : undefined}>
      {icon}
      {name}
    </Link>
  );
  return (
    <nav className="side" aria-label="Main">
      <Link className="brand" href="/runs" aria-label="Manyworlds: to the runs">
        <Mark />
        <span>Manyworlds</span>
      </Link>
      {item("/runs", "Runs", ["/rollouts", "/compare"], <Icon d="M2 12.5h12M2 8h12M2 3.5h12" />)}
      {item("/tasks", "Tasks", ["/task"], <Icon d="M3 2.5h10v11H3zM5.5 6l1.3 1.3L9 5M5.5 10.5H11" />)}
      {site?.delivery === true && item("/trainer", "Trainer", [], <Icon d="M2 13l4-5 3 2.5L14 3M10.5 3H14v3.5" />)}
      {site?.sandboxes === true && item("/sandboxes", "Sandboxes", [], <Icon d="M8 1.8l5.5 3v6.4L8 14.2l-5.5-3V4.8zM2.5 4.8L8 7.8l5.5-3M8 7.8v6.4" />)}
      <div className="foot">
        <span className="home ellipsis" title={site?.home}>{site === null ? "" : `${site.version} · ${site.home.split("/").at(-1) ?? ""}`}</span>
        <div className="row">
          <button type="button" className="button small ghost" onClick={toggleTheme} aria-label="Switch between light and dark" title="Light or dark (T)">◐</button>
          <button type="button" className="button small ghost" onClick={onKeys} aria-label="Keys" title="Keys (?)">?</button>
        </div>
      </div>
    </nav>
  );
}

function toggleTheme(): void {
  const root = document.documentElement;
  const dark = root.dataset["theme"] === undefined ? matchMedia("(prefers-color-scheme: dark)").matches : root.dataset["theme"] === "dark";
  root.dataset["theme"] = dark ? "light" : "dark";
  localStorage.setItem("mw-theme", dark ? "light" : "dark");
}

function Mark(): ReactNode {
  return (
    <svg viewBox="0 0 32 32" aria-hidden="true" fill="none" stroke="currentColor" strokeWidth="2.4">
      <circle cx="16" cy="16" r="4.2" fill="currentColor" stroke="none" />
      {[0, 60, 120].map((turn) => (
        <ellipse key={turn} cx="16" cy="16" rx="14" ry="5.6" transform={`rotate(${turn} 16 16)`} />
      ))}
    </svg>
  );
}

function Icon({ d }: { readonly d: string }): ReactNode {
  return (
    <svg viewBox="0 0 16 16" aria-hidden="true" fill="none" stroke="currentColor" strokeWidth="1.5" strokeLinecap="round" strokeLinejoin="round">
      <path d={d} />
    </svg>
  );
}

/** A page that breaks leaves the frame standing. */
class Boundary extends Component<{ readonly children: ReactNode }, { readonly error: Error | null }> {
  override state: { readonly error: Error | null } = { error: null };
  static getDerivedStateFromError(error: Error): { readonly error: Error } {
    return { error };
  }
  override render(): ReactNode {
    return this.state.error === null ? this.props.children : <Failed error={this.state.error} />;
  }
}

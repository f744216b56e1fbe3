import { StrictMode } from "react";
import { createRoot } from "react-dom/client";
import { QueryClient, QueryClientProvider } from "@tanstack/react-query";
import { Router } from "wouter";
import { App } from "./app.tsx";
import { ApiError, takeKey } from "./lib/api.ts";
import "./theme.css";

// The server's root is the page too; from there on every address is below `/ui`.
if (!location.pathname.startsWith("/ui/")) history.replaceState(null, "", `/ui/runs${location.search}${location.hash}`);
takeKey();
const theme = localStorage.getItem("mw-theme");
if (theme === "light" || theme === "dark") document.documentElement.dataset["theme"] = theme;

const client = new QueryClient({
  defaultOptions: {
    queries: {
      staleTime: 5_000,
      // A server that is away comes back; an answer that says no stays no.
      retry: (count, error) => error instanceof ApiError && (error.status === 0 || error.status >= 500) && count < 2,
      refetchOnWindowFocus: true,
    },
  },
});

// The server's page has this element.
createRoot(document.getElementById("root") as HTMLElement).render(
  <StrictMode>
    <QueryClientProvider client={client}>
      <Router base="/ui">
        <App />
      </Router>
    </QueryClientProvider>
  </StrictMode>,
);

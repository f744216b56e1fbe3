/** The OpenAPI document of the routes, as it is committed: `docs/openapi/delivery.json`. */
import { openApiOf } from "../endpoint.ts";
import { deliveryEndpoints } from "./endpoints.ts";

const DESCRIPTION = "Groups of rollouts for trainers: submitted or drawn, leased, acknowledged. See docs/delivery.md.";

export function deliveryDocument(): ReturnType<typeof openApiOf> {
  const never = new AbortController().signal;
  const endpoints = deliveryEndpoints({ registryOf: () => Promise.reject(new Error("a document is not asked")), draining: never });
  return openApiOf({ title: "Manyworlds delivery", version: "1", description: DESCRIPTION }, endpoints);
}

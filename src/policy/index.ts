/** The policy register: versions, endpoints, live or updating. */
export { PolicyRegister, type LivePolicy, type PolicyEndpoint, type PolicyView } from "./register.ts";

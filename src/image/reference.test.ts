import { expect, it } from "vitest";
import { fullName, parseImageReference, shortName } from "./reference.ts";

it.each([
  ["host", { kind: "host" }],
  ["dir:a/b", { kind: "dir", path: "/cwd/a/b" }],
  ["tar:/x/y.tar.gz", { kind: "tar", path: "/x/y.tar.gz" }],
  ["oci:lay", { kind: "oci", path: "/cwd/lay", tag: null }],
  ["oci:lay:v1", { kind: "oci", path: "/cwd/lay", tag: "v1" }],
  ["docker-archive:/a.tar:ghcr.io/a/b:v1", { kind: "docker-archive", path: "/a.tar", tag: "ghcr.io/a/b:v1" }],
  ["mmdebstrap:bookworm", { kind: "mmdebstrap", suite: "bookworm", packages: [] }],
  ["mmdebstrap:trixie+g++,git,git", { kind: "mmdebstrap", suite: "trixie", packages: ["g++", "git"] }],
  [`sha256:${"a".repeat(64)}`, { kind: "digest", digest: `sha256:${"a".repeat(64)}` }],
  [`host:${"a".repeat(64)}`, { kind: "digest", digest: `host:${"a".repeat(64)}` }],
])("reads %s", (text, expected) => {
  expect(parseImageReference(text, "/cwd")).toEqual(expected);
});

it.each([
  ["python", "docker.io/library/python:latest", "python:latest"],
  ["python:3.12-slim", "docker.io/library/python:3.12-slim", "python:3.12-slim"],
  ["docker.io/library/python:3.12-slim", "docker.io/library/python:3.12-slim", "python:3.12-slim"],
  ["a/b:c", "docker.io/a/b:c", "a/b:c"],
  ["ghcr.io/a/b", "ghcr.io/a/b:latest", "ghcr.io/a/b:latest"],
  ["localhost:5000/a", "localhost:5000/a:latest", "localhost:5000/a:latest"],
  [`a@sha256:${"1".repeat(64)}`, `docker.io/library/a@sha256:${"1".repeat(64)}`, `a@sha256:${"1".repeat(64)}`],
  [`a:v1@sha256:${"1".repeat(64)}`, `docker.io/library/a:v1@sha256:${"1".repeat(64)}`, `a:v1@sha256:${"1".repeat(64)}`],
])("completes %s", (text, full, short) => {
  const parsed = parseImageReference(text);
  expect(parsed.kind === "name" && [fullName(parsed.name), shortName(parsed.name)]).toEqual([full, short]);
});

it.each(["", "http://x/y", "A/b", "a b", "../x", "a/../b", "a:", "a@sha256:12", "a@md5:11", "dir:", "oci:", "mmdebstrap:", "mmdebstrap:x;y", "mmdebstrap:a+b c", "x".repeat(300), "reg ist/a/b", "host:12:34:56"])(
  "refuses %j and says what is allowed",
  (text) => {
    let error: unknown;
    try {
      parseImageReference(text);
    } catch (thrown) {
      error = thrown;
    }
    expect(error).toMatchObject({ code: "invalid_image", fix: expect.stringMatching(/./) });
  },
);

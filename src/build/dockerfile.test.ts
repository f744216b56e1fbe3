import { describe, expect, it } from "vitest";
import { MwError } from "../core/errors.ts";
import { parseDockerfile } from "./dockerfile.ts";

const steps = (body: string): unknown[] => parseDockerfile(`FROM base\n${body}`, "Dockerfile").stages[0]?.instructions.map((step) => Object.fromEntries(Object.entries(step).filter(([key]) => key !== "text" && key !== "line"))) ?? [];

describe("parseDockerfile", () => {
  it("splits stages with their names and global arguments", () => {
    const parsed = parseDockerfile("ARG V=1\nFROM a:${V} AS Build\nRUN x\nFROM scratch\nCOPY --from=build /x /y\n", "Dockerfile");
    expect(parsed.globalArgs).toEqual([{ name: "V", value: "1" }]);
    expect(parsed.stages.map(({ name, base }) => [name, base])).toEqual([
      ["build", "a:${V}"],
      [null, "scratch"],
    ]);
  });

  it("joins continued lines and drops comments and empty lines inside them", () => {
    expect(steps("RUN apt-get update \\\n  # why\n\n  && apt-get install x")).toEqual([
      { kind: "run", command: { form: "shell", line: "apt-get update   && apt-get install x" }, heredocs: [], network: "default" },
    ]);
  });

  it("reads the exec form, and takes a broken array as a shell line as Docker does", () => {
    expect(steps('RUN ["a", "b c"]')).toMatchObject([{ command: { form: "exec", argv: ["a", "b c"] } }]);
    expect(steps("RUN [ -f x ]")).toMatchObject([{ command: { form: "shell", line: "[ -f x ]" } }]);
  });

  it("reads heredocs with their bodies, quoted or not, tabs stripped for <<-", () => {
    expect(steps('COPY <<A <<-"B" /dst/\none $X\nA\n\ttwo\n\tB\nRUN <<EOF\necho hi\nEOF')).toMatchObject([
      { kind: "copy", sources: [], destination: "/dst/", heredocs: [{ name: "A", content: "one $X\n", expand: true }, { name: "B", content: "two\n", expand: false }] },
      { kind: "run", command: { form: "shell", line: "<<EOF" }, heredocs: [{ content: "echo hi\n" }] },
    ]);
  });

  it("reads copies with flags, several sources and names with blanks", () => {
    expect(steps('COPY --chown=a:b --chmod=755 x y/ /z/\nCOPY ["a b", "/c d"]')).toMatchObject([
      { sources: ["x", "y/"], destination: "/z/", chown: "a:b", chmod: "755" },
      { sources: ["a b"], destination: "/c d" },
    ]);
  });

  it("accepts Windows line ends and a byte order mark", () => {
    const parsed = parseDockerfile("\uFEFFFROM base\r\nRUN a \\\r\n && b\r\nWORKDIR /w\r\n", "Dockerfile");
    expect(parsed.stages[0]?.instructions.map(({ kind }) => kind)).toEqual(["run", "workdir"]);
    expect(parsed.stages[0]?.instructions[0]).toMatchObject({ command: { line: "a  && b" } });
  });

  it("warns about what has no effect", () => {
    expect(parseDockerfile("FROM a\nEXPOSE 80\n", "D").warnings).toEqual(["D:2: EXPOSE has no effect here: ports are declared by the task"]);
  });

  it.each([
    ["", "no FROM"],
    ["RUN x\nFROM a", "D:1: RUN stands before the first FROM"],
    ["FROM a b c", "D:1: FROM a b c: expected"],
    ["FROM a\nONBUILD RUN x", "D:2: ONBUILD cannot be built here"],
    ["FROM a\nRUN --mount=type=secret,id=x y", "D:2: RUN --mount=type=secret,id=x cannot be built here"],
    ["FROM a\nRUN --security=insecure y", "D:2: RUN --security=insecure cannot be built here"],
    ["FROM a\nADD https://example.org/x /x", "D:2: ADD https://example.org/x: builds fetch nothing by ADD"],
    ["FROM a\nCOPY x", "D:2: COPY needs at least one source"],
    ["FROM a\nENV ", "D:2: cannot read the assignments"],
    ["FROM a\nSHELL bash", "D:2: SHELL needs a JSON array"],
    ["FROM a\nCOPY --parents a /b", "D:2: COPY --parents cannot be built here"],
    ["FROM --platform=windows/amd64 a", "D:1: FROM --platform=windows/amd64"],
    ["FROM a\nFOO bar", "D:2: FOO cannot be built here"],
    ["FROM a\nRUN", "D:2: the instruction has no command"],
  ])("refuses %j by name and line", (text, message) => {
    let error: unknown;
    try {
      parseDockerfile(text, "D");
    } catch (caught) {
      error = caught;
    }
    expect(error).toBeInstanceOf(MwError);
    expect(error).toMatchObject({ code: "invalid_image", message: expect.stringContaining(message), fix: expect.stringMatching(/./) });
  });
});

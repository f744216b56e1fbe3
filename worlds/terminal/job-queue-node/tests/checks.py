import json

from grade import check, expect, own, rng, run, same, write

# Drives the queue through a scenario and reports what happened. It judges nothing: the expected story is told below, in Python.
DRIVER = r"""
const { JobQueue, CancelledError } = require("/app/queue.js");
const plan = JSON.parse(require("fs").readFileSync(0, "utf8"));
const log = [];
const unhandled = [];
process.on("unhandledRejection", (error) => unhandled.push(String(error && error.message)));
const microtasks = async (n = 20) => { for (let i = 0; i < n; i++) await null; };
async function main() {
  if (plan.bad !== undefined) {
    try { new JobQueue({ concurrency: plan.bad === "NaN" ? NaN : plan.bad }); log.push("built"); } catch (error) { log.push(error instanceof RangeError ? "RangeError" : String(error)); }
    return;
  }
  const queue = new JobQueue(plan.options);
  const doors = {}, controllers = {};
  for (const step of plan.steps) {
    const [verb, name] = step;
    if (verb === "add") {
      const { priority, signal, plain, aborted, fails } = step[2] || {};
      let controller;
      if (signal) {
        controller = controllers[signal] = controllers[signal] || new AbortController();
        const s = controller.signal;
        if (s.count === undefined) {
          s.count = 0;
          const add = s.addEventListener.bind(s), remove = s.removeEventListener.bind(s);
          const live = new Set();
          s.addEventListener = (type, f, o) => { if (!(o && o.once)) live.add(f); else { live.add(f); } s.count = live.size; add(type, f, o); };
          s.removeEventListener = (type, f, o) => { live.delete(f); s.count = live.size; remove(type, f, o); };
        }
        if (aborted) controller.abort();
      }
      let attempt = 0;
      const job = (given) => {
        attempt++;
        log.push(`start ${name} ${attempt}` + (signal ? (given === controller.signal ? " signal" : " wrong-signal") : given === undefined ? "" : " argument"));
        if (plain) { if (attempt <= (fails || 0)) throw new Error(`plain ${name} ${attempt}`); return `value ${name}`; }
        return new Promise((resolve, reject) => { doors[name] = { resolve, reject }; });
      };
      const options = {};
      if (priority !== undefined) options.priority = priority;
      if (controller) options.signal = controller.signal;
      queue.add(job, options).then(
        (value) => log.push(`done ${name} ${value}`),
        (error) => log.push(`failed ${name} ${error instanceof CancelledError ? "cancelled" : error.message}`));
    } else if (verb === "finish") { log.push(`> finish ${name}`); doors[name].resolve(`value ${name}`); }
    else if (verb === "break") { log.push(`> break ${name}`); doors[name].reject(new Error(step[2])); }
    else if (verb === "abort") { log.push(`> abort ${name}`); controllers[name].abort(); }
    else if (verb === "idle") { queue.onIdle().then(() => log.push(`idle ${name}`)); }
    else if (verb === "look") { log.push(`size ${queue.size} active ${queue.active}`); continue; }
    else if (verb === "listeners") { log.push(`listeners ${controllers[name].signal.count}`); continue; }
    if (verb !== "add" || step[3] !== "same-turn") await microtasks();
  }
  await new Promise((resolve) => setTimeout(resolve, 20));
}
main().catch((error) => log.push("driver: " + error.stack)).then(() => { process.stdout.write(JSON.stringify({ log, unhandled })); });
"""


def story(options, steps):
    own("/app")
    result = run(["/usr/bin/node", write("driver.js", DRIVER)], stdin=json.dumps({"options": options, "steps": steps}))
    told = json.loads(result.text)
    same(told["unhandled"], [], "unhandled rejections")
    return told["log"]


def names(count):
    return [f"j{rng.randrange(10**8)}" for _ in range(count)]


@check("the limit holds, and free room is used at once")
def limit():
    a, b, c, d, e = names(5)
    add = [["add", n] for n in (a, b, c, d)]
    log = story({"concurrency": 2}, [*add, ["look"], ["finish", b], ["look"], ["finish", a], ["add", e], ["look"], ["finish", c], ["finish", d], ["finish", e], ["look"]])
    same(log, [f"start {a} 1", f"start {b} 1", "size 2 active 2", f"> finish {b}", *sorted_pair(log, 4, f"done {b} value {b}", f"start {c} 1"), "size 1 active 2",
               f"> finish {a}", *sorted_pair(log, 8, f"done {a} value {a}", f"start {d} 1"), "size 1 active 2",
               f"> finish {c}", *sorted_pair(log, 12, f"done {c} value {c}", f"start {e} 1"), f"> finish {d}", f"done {d} value {d}",
               f"> finish {e}", f"done {e} value {e}", "size 0 active 0"], "story")


def sorted_pair(log, at, first, second):
    """Two events of the same turn whose order is nobody's business."""
    return (first, second) if log[at : at + 1] == [first] else (second, first)


@check("priorities, and order among equals")
def order():
    first, *rest = names(9)
    ranks = [0, 5, -1, 5, 0, 10, -1, 2]
    rng.shuffle(ranks)
    steps = [["add", first]] + [["add", n, {"priority": r}, "same-turn"] for n, r in zip(rest, ranks)] + [["look"], ["finish", first]]
    ordered = [n for _, n in sorted(zip(ranks, rest), key=lambda pair: -pair[0])]
    steps += [["finish", n] for n in ordered]
    log = story({}, steps)
    same([line for line in log if line.startswith("start")], [f"start {n} 1" for n in [first, *ordered]], "order of starts")


@check("failures concern nobody else; retries keep their place")
def failures():
    a, b, c, p = names(4)
    log = story({"concurrency": 1, "retries": 2}, [["add", a], ["add", b], ["add", p, {"plain": True, "fails": 9}], ["add", c, {"priority": 1}], ["break", a, "one"], ["finish", c],
                ["break", a, "two"], ["break", a, "three"], ["finish", b], ["idle", "end"]])
    starts = [line for line in log if line.startswith("start")]
    same(starts, [f"start {a} 1", f"start {c} 1", f"start {a} 2", f"start {a} 3", f"start {b} 1", f"start {p} 1", f"start {p} 2", f"start {p} 3"], "order of starts")
    expect(f"failed {a} three" in log, "the last attempt's error does not reach the caller")
    expect(f"failed {p} plain {p} 3" in log, "a plain function that throws is not treated as a failure")
    expect(log[-1] == "idle end" and f"done {b} value {b}" in log, "the queue does not go on after a failure")
    log = story({}, [["add", a], ["add", b], ["break", a, "boom"], ["finish", b]])
    same([line for line in log if not line.startswith(">")][-1], f"done {b} value {b}", "last event")
    expect(f"failed {a} boom" in log and log.count(f"start {a} 1") == 1 and f"start {a} 2" not in log, "without retries a failed job runs once")


@check("cancelling removes the right job, once, at once")
def cancelling():
    a, b, c, d = names(4)
    log = story({}, [["add", a, {"signal": "A"}], ["add", b, {"signal": "B"}], ["add", c], ["add", d, {"signal": "D", "aborted": True}], ["look"], ["abort", "B"], ["look"], ["listeners", "B"],
                     ["abort", "A"], ["look"], ["finish", a], ["listeners", "A"], ["finish", c], ["look"]])
    same(log, [f"start {a} 1 signal", f"failed {d} cancelled", "size 2 active 1", "> abort B", f"failed {b} cancelled", "size 1 active 1", "listeners 0", "> abort A", "size 1 active 1",
               f"> finish {a}", *sorted_pair(log, 10, f"done {a} value {a}", f"start {c} 1"), "listeners 0", f"> finish {c}", f"done {c} value {c}", "size 0 active 0"], "story")


@check("cancelling between and during attempts")
def attempts():
    a, b = names(2)
    log = story({"retries": 3}, [["add", a, {"signal": "A"}], ["add", b, {"priority": 9}], ["break", a, "x"], ["abort", "A"], ["finish", b]])
    same([line for line in log if a in line], [f"start {a} 1 signal", f"> break {a}", f"failed {a} cancelled"], "the job that waited for its second attempt")
    log = story({"retries": 3}, [["add", a, {"signal": "A"}], ["abort", "A"], ["break", a, "x"], ["listeners", "A"], ["look"]])
    same(log, [f"start {a} 1 signal", "> abort A", f"> break {a}", f"failed {a} cancelled", "listeners 0", "size 0 active 0"], "the job that failed after its abort")
    log = story({"retries": 1}, [["add", a, {"signal": "A"}], ["break", a, "x"], ["finish", a], ["listeners", "A"]])
    same(log[-2:], [f"done {a} value {a}", "listeners 0"], "the job that succeeded on its second attempt")


@check("idle means idle")
def idle():
    a, b = names(2)
    log = story({"concurrency": 2}, [["idle", "0"], ["add", a], ["idle", "1"], ["add", b], ["finish", a], ["look"], ["finish", b], ["idle", "2"], ["add", a], ["finish", a]])
    same(log, ["idle 0", f"start {a} 1", f"start {b} 1", f"> finish {a}", f"done {a} value {a}", "size 0 active 1", f"> finish {b}", f"done {b} value {b}", "idle 1", "idle 2",
               f"start {a} 1", f"> finish {a}", f"done {a} value {a}"], "story")
    log = story({}, [["add", a], ["add", b, {"signal": "B"}], ["idle", "x"], ["break", a, "no"], ["finish", b]])
    same(log[-2:], [f"done {b} value {b}", "idle x"], "end of the story")


@check("a bad limit is refused")
def bad():
    own("/app")
    for value in [0, -1, 1.5, "2", "NaN"]:
        result = run(["/usr/bin/node", write("driver.js", DRIVER)], stdin=json.dumps({"bad": value}))
        same(json.loads(result.text)["log"], ["RangeError"], f"concurrency {value!r}")

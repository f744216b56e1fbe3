import { describe, expect, it } from "vitest";
import { readJson, writeJson } from "./json.ts";
import { Template } from "./template.ts";
import { Float, TemplateRefusal } from "./values.ts";

const NOW = new Date(2026, 6, 5, 9, 3, 7);
const render = (source: string, variables: Readonly<Record<string, unknown>> = {}): string => new Template(source).render(variables, NOW);

/** What Jinja 3.1 in Python gives, with the filters that transformers adds. */
describe("Template", () => {
  it.each([
    ["{{ [true, false, none, 1, 1.0, big, 0.00001, 'a\\'b\"', {'k': (1, 2)}] }}", "[True, False, None, 1, 1.0, 1e+16, 1e-05, 'a\\'b\"', {'k': (1, 2)}]"],
    ["{{ true }}|{{ none }}|{{ missing }}|{{ 1.0 }}|{{ 7 / 2 }}|{{ 7 // 2 }}|{{ -7 % 3 }}", "True|None||1.0|3.5|3|2"],
    ["{{ false | string ~ none ~ 2 }}", "FalseNone2"],
    ["{{ ' \\n x \\n '.strip('\\n') }}|{{ '\\n\\n x'.lstrip('\\n') }}|{{ 'xx-a-xx'.rstrip('x') }}", " \n x \n | x|xx-a-"],
    ["{% for i in range(5) %}{{ i }}{% if i == 1 %}{% continue %}{% endif %}{% if i == 3 %}!{% break %}{% endif %},{% endfor %}", "0,12,3!"],
    ["{% set n = namespace(a=0) %}{% set b = 0 %}{% for i in [1, 2] %}{% set n.a = n.a + i %}{% set b = i %}{% endfor %}{{ n.a }}{{ b }}", "30"],
    ["{{ {'b': 1, 'a': [1.5, 'é', none, true]} | tojson }}|{{ 'é\\u2028' | tojson(ensure_ascii=true) }}", '{"b": 1, "a": [1.5, "é", null, true]}|"\\u00e9\\u2028"'],
    ["{{ {'a': [], 'b': {'c': 1}} | tojson(indent=2) }}", '{\n  "a": [],\n  "b": {\n    "c": 1\n  }\n}'],
    ["{{ {'a': 1, 'b': [2]} | tojson(separators=(',', ':')) }}", '{"a":1,"b":[2]}'],
    ["{{ strftime_now('%d %b %Y %H:%M:%S %A %-d') }}", "05 Jul 2026 09:03:07 Sunday 5"],
    ["{% macro f(a, b='x') %}{{ a }}{{ b }}{{ caller() if caller is defined }}{% endmacro %}{{ f(1) }}{{ f(1, b=none) }}{% call f(2) %}!{% endcall %}", "1x1None2x!"],
    ["{{ 'a,b,,c'.split(',') }}{{ ' a  b '.split() }}{{ 'a b c'.split(' ', 1) }}{{ 'a b c'.rsplit(' ', 1)[0] }}", "['a', 'b', '', 'c']['a', 'b']['a', 'b c']a b"],
    ["{{ 'a🙂b'[1] }}{{ 'a🙂b'[::-1] }}{{ 'a🙂b' | length }}{{ [1,2,3][-2:] }}", "🙂b🙂a3[2, 3]"],
    ["{{ d.items() | list }}{% for k, v in d | items %}{{ k }}{{ v }}{% endfor %}{{ d.get('x', 'no') }}{{ d['items'] is defined }}", "[('k', 'v')]kvnoTrue"],
    ["{{ [{'a': 1}, {'a': 2}, {}] | selectattr('a', 'defined') | map(attribute='a') | join('-') }}", "1-2"],
    ["{%- set x -%} block {%- endset -%}[{{ x }}]{# gone #}{% if x is string and x | trim == 'block' %}yes{% else %}no{% endif %}", "[block]yes"],
    ["{{ 'b' in 'abc' }}{{ 'x' in missing }}{{ 'k' in {'k': 1} }}{{ 2 in [1, 2] }}{{ 1 is number }}{{ 'a' is mapping }}", "TrueFalseTrueTrueTrueFalse"],
    ["{% for x in [] %}{{ x }}{% else %}none{% endfor %}{% for x in [1, 2, 3] if x != 2 %}{{ loop.index }}/{{ loop.length }}:{{ x }}{{ '' if loop.last else ' ' }}{% endfor %}", "none1/2:1 2/2:3"],
  ])("%s", (source, expected) => {
    expect(render(source, { d: { k: "v" }, big: new Float(1e16) })).toBe(expected);
  });

  it.each(["{{ 'a' + 1 }}", "{{ missing.field }}", "{{ [] | nonsense }}", "{{ 1 is nonsense }}", "{{ f() }}", "{% set a.b = 1 %}", "{{ {'a': f} | tojson }}", "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "{{ [1].append(2) }}", "{{ range(10000000) | list }}"])(
    "refuses what Python refuses: %s",
    (source) => {
      expect(() => render(source)).toThrow(/./);
    },
  );

  it("passes on what the template itself refuses", () => {
    expect(() => render("{{ raise_exception('roles must alternate') }}")).toThrow(TemplateRefusal);
    expect(() => render("{{ raise_exception('roles must alternate') }}")).toThrow("roles must alternate");
    expect(() => new Template("{% if %}")).toThrow("does not parse");
  });

  it("keeps numbers and the order of keys as they were sampled", () => {
    const text = '{"2": 1.0, "1": 12345678901234567890, "b": {"10": [1e5, -0.0]}, "a": "\\u00e9\\n"}';
    expect(writeJson(readJson(text)!.value)).toBe('{"2": 1.0, "1": 12345678901234567890, "b": {"10": [100000.0, -0.0]}, "a": "é\\n"}');
    expect(readJson("{'a': 1}")).toBeNull();
    expect(readJson("[".repeat(5_000) + "]".repeat(5_000))).toBeNull();
    let deep: unknown = {};
    for (let depth = 0; depth < 5_000; depth++) deep = { deep };
    expect(() => render("{{ deep | tojson }}", { deep })).toThrow(/nested/);
    expect(readJson('{"a": 1} x')).toBeNull();
  });
});

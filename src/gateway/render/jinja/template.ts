/**
 * Chat templates as transformers renders them.
 *
 * The problem: a model was trained on what Jinja in Python made of its template, and a prompt that differs by one space is another prompt. `@huggingface/jinja` parses
 * templates, but runs them with JavaScript's values: `True` becomes `true`, `strip("\n")` strips everything, what a loop wrote before `continue` is lost. So its parser is
 * used, and the tree is run here, with Python's values (`values.ts`). What Python refuses is refused: a template that meets such a thing fails, it does not guess.
 */
import { binary, negate } from "./operators.ts";
import { FILTERS, test } from "./filters.ts";
import { globals } from "./globals.ts";
import { argument, item, method, slice } from "./methods.ts";
import { parseTemplate, type CallExpression, type Expression, type Filter, type SliceExpression, type Statement } from "./syntax.ts";
import { Callable, Float, Namespace, TemplateError, Tuple, Undefined, fromJs, isDict, isTrue, items, toNumber, toText, typeName, type Arguments, type Dict, type Value } from "./values.ts";

/** Variables of one block; lookups go outwards. */
class Scope {
  readonly #variables = new Map<string, Value>();
  readonly #outer: Scope | null;
  constructor(outer: Scope | null) {
    this.#outer = outer;
  }

  get(name: string): Value | undefined {
    const value = this.#variables.get(name);
    return value === undefined ? this.#outer?.get(name) : value;
  }

  set(name: string, value: Value): void {
    this.#variables.set(name, value);
  }
}

class Break extends Error {}
class Continue extends Error {}

/** What a render may cost: nested macros and loops over loops end here, as an error. */
const MAX_DEPTH = 300;
const MAX_OUTPUT_CHARS = 64 * 1024 * 1024;

export class Template {
  readonly #body: readonly Statement[];

  /** Throws `TemplateError` for a source that is no template. */
  constructor(source: string) {
    try {
      this.#body = parseTemplate(source);
    } catch (cause) {
      throw new TemplateError(`The template does not parse: ${cause instanceof Error ? cause.message : String(cause)}`);
    }
  }

  /**
   * `now` is what `strftime_now` tells. Throws `TemplateRefusal` with the template's own words where it calls `raise_exception`, `TemplateError` for anything that fails in Python
   * too, or that is not known here.
   */
  render(variables: Readonly<Record<string, unknown>>, now: Date): string {
    const scope = new Scope(null);
    for (const [name, value] of globals(now)) scope.set(name, value);
    for (const [name, value] of Object.entries(variables)) if (value !== undefined) scope.set(name, fromJs(value));
    return new Run().block(this.#body, new Scope(scope));
  }
}

class Run {
  #depth = 0;
  #written = 0;

  block(statements: readonly Statement[], scope: Scope): string {
    let text = "";
    this.#depth += 1;
    if (this.#depth > MAX_DEPTH) throw new TemplateError("The template nests too deep.");
    try {
      for (const statement of statements) {
        const part = this.#statement(statement, scope);
        this.#written += part.length;
        if (this.#written > MAX_OUTPUT_CHARS) throw new TemplateError("The template writes too much.");
        text += part;
      }
    } catch (error) {
      // What was written before a `break` or `continue` stands.
      if ((error instanceof Break || error instanceof Continue) && text !== "") error.message = text + error.message;
      throw error;
    } finally {
      this.#depth -= 1;
    }
    return text;
  }

  #statement(statement: Statement, scope: Scope): string {
    switch (statement.type) {
      case "Program":
        return this.block(statement.body, scope);
      case "Comment":
        return "";
      case "Break":
        throw new Break("");
      case "Continue":
        throw new Continue("");
      case "If":
        return this.block(isTrue(this.evaluate(statement.test, scope)) ? statement.body : statement.alternate, scope);
      case "For":
        return this.#for(statement, scope);
      case "Set":
        this.#assign(statement.assignee, statement.value === null ? this.block(statement.body, new Scope(scope)) : this.evaluate(statement.value, scope), scope);
        return "";
      case "Macro":
        scope.set(statement.name.value, this.#macro(statement.name.value, statement.args, statement.body, scope));
        return "";
      case "CallStatement": {
        const caller = this.#macro("caller", statement.callerArgs ?? [], statement.body, scope);
        const args = this.#arguments(statement.call.args, scope);
        return toText(this.#call(this.evaluate(statement.call.callee, scope), { positional: args.positional, named: new Map([...args.named, ["caller", caller]]) }, "the macro"));
      }
      case "FilterStatement":
        return toText(this.#filter(statement.filter, this.block(statement.body, new Scope(scope)), scope));
      default:
        return toText(this.evaluate(statement, scope));
    }
  }

  #for(loop: Extract<Statement, { type: "For" }>, scope: Scope): string {
    const filtered = loop.iterable.type === "SelectExpression" ? loop.iterable : null;
    let list = items(this.evaluate(filtered?.lhs ?? loop.iterable, scope));
    if (filtered !== null) {
      list = list.filter((value) => {
        const inner = new Scope(scope);
        this.#assign(loop.loopvar, value, inner);
        return isTrue(this.evaluate(filtered.test, inner));
      });
    }
    let text = "";
    for (const [index, value] of list.entries()) {
      const inner = new Scope(scope);
      inner.set("loop", loopFacts(list, index));
      this.#assign(loop.loopvar, value, inner);
      try {
        text += this.block(loop.body, inner);
      } catch (error) {
        if (!(error instanceof Break) && !(error instanceof Continue)) throw error;
        text += error.message;
        if (error instanceof Break) break;
      }
    }
    return list.length === 0 ? this.block(loop.defaultBlock, scope) : text;
  }

  #assign(target: Expression, value: Value, scope: Scope): void {
    if (target.type === "Identifier") scope.set(target.value, value);
    else if (target.type === "TupleLiteral" || target.type === "ArrayLiteral") {
      const parts = items(value);
      if (parts.length !== target.value.length) throw new TemplateError(`${target.value.length} names for ${parts.length} values.`);
      for (const [index, name] of target.value.entries()) this.#assign(name, parts[index]!, scope);
    } else if (target.type === "MemberExpression" && target.property.type === "Identifier") {
      const object = this.evaluate(target.object, scope);
      if (!(object instanceof Namespace)) throw new TemplateError("Only a namespace's attributes can be set.");
      object.fields.set(target.property.value, value);
    } else throw new TemplateError(`Nothing can be assigned to a ${target.type}.`);
  }

  #macro(name: string, parameters: readonly Expression[], body: readonly Statement[], scope: Scope): Callable {
    return new Callable((args) => {
      const inner = new Scope(scope);
      const named = new Map(args.named);
      const names: string[] = [];
      for (const [index, parameter] of parameters.entries()) {
        const key = parameter.type === "KeywordArgumentExpression" ? parameter.key.value : parameter.type === "Identifier" ? parameter.value : null;
        if (key === null) throw new TemplateError(`Macro '${name}' has a parameter without a name.`);
        names.push(key);
        const given = argument({ positional: args.positional, named }, index, key);
        named.delete(key);
        const missing = (): Value => (parameter.type === "KeywordArgumentExpression" ? this.evaluate(parameter.value, inner) : new Undefined(key));
        inner.set(key, given === undefined ? missing() : given);
      }
      const caller = named.get("caller");
      if (caller !== undefined && !names.includes("caller")) inner.set("caller", caller);
      named.delete("caller");
      inner.set("kwargs", named as Dict);
      inner.set("varargs", new Tuple(args.positional.slice(parameters.length)));
      return this.block(body, inner);
    });
  }

  evaluate(node: Expression, scope: Scope): Value {
    switch (node.type) {
      case "IntegerLiteral":
      case "StringLiteral":
        return node.value;
      case "FloatLiteral":
        return new Float(node.value);
      case "ArrayLiteral":
        return node.value.map((part) => this.evaluate(part, scope));
      case "TupleLiteral":
        return new Tuple(node.value.map((part) => this.evaluate(part, scope)));
      case "ObjectLiteral":
        return new Map([...node.value].map(([key, value]) => [this.evaluate(key, scope), this.evaluate(value, scope)]));
      case "Identifier":
        return lookUp(scope, node.value);
      case "MemberExpression":
        return this.#member(node, scope);
      case "CallExpression":
        return this.#call(this.evaluate(node.callee, scope), this.#arguments(node.args, scope), describe(node.callee));
      case "FilterExpression":
        return this.#filter(node.filter, this.evaluate(node.operand, scope), scope);
      case "TestExpression":
        return test(node.test.value)(this.evaluate(node.operand, scope), []) !== node.negate;
      case "SelectExpression":
        return isTrue(this.evaluate(node.test, scope)) ? this.evaluate(node.lhs, scope) : new Undefined("");
      case "Ternary":
        return this.evaluate(isTrue(this.evaluate(node.condition, scope)) ? node.trueExpr : node.falseExpr, scope);
      case "UnaryExpression": {
        const value = this.evaluate(node.argument, scope);
        return node.operator.value === "not" ? !isTrue(value) : node.operator.value === "-" ? negate(value) : value;
      }
      case "BinaryExpression": {
        const left = this.evaluate(node.left, scope);
        if (node.operator.value === "and") return isTrue(left) ? this.evaluate(node.right, scope) : left;
        if (node.operator.value === "or") return isTrue(left) ? left : this.evaluate(node.right, scope);
        return binary(node.operator.value, left, this.evaluate(node.right, scope));
      }
      default:
        throw new TemplateError(`A ${node.type} is no value.`);
    }
  }

  #member(node: Extract<Expression, { type: "MemberExpression" }>, scope: Scope): Value {
    const object = this.evaluate(node.object, scope);
    if (object instanceof Undefined) throw new TemplateError(`'${object.name}' is undefined`);
    if (node.property.type === "SliceExpression") return this.#slice(object, node.property, scope);
    const property = node.computed || node.property.type !== "Identifier" ? this.evaluate(node.property, scope) : node.property.value;
    const name = typeof property === "string" ? property : null;
    if (object instanceof Namespace) {
      const field = name === null ? undefined : object.fields.get(name);
      return field === undefined ? new Undefined(toText(property)) : field;
    }
    // `a.b` prefers the attribute, `a["b"]` the item.
    const attribute = name === null ? null : method(object, name);
    const own = item(object, property);
    if (attribute !== null && (!node.computed || own === undefined)) return attribute;
    return own === undefined ? new Undefined(toText(property)) : own;
  }

  #slice(object: Value, node: SliceExpression, scope: Scope): Value {
    const bound = (part: Expression | undefined): number | null => {
      const value = part === undefined ? null : this.evaluate(part, scope);
      if (value === null) return null;
      return toNumber(value) ?? failSlice(value);
    };
    return slice(object, bound(node.start), bound(node.stop), bound(node.step));
  }

  #filter(filter: Filter, operand: Value, scope: Scope): Value {
    const name = filter.type === "Identifier" ? filter.value : filter.callee.type === "Identifier" ? filter.callee.value : "";
    const found = FILTERS.get(name);
    if (found === undefined) throw new TemplateError(`No filter named '${name}'.`);
    return found(operand, filter.type === "Identifier" ? { positional: [], named: new Map() } : this.#arguments(filter.args, scope));
  }

  #call(target: Value, args: Arguments, name: string): Value {
    if (!(target instanceof Callable)) throw new TemplateError(target instanceof Undefined ? `'${name}' is undefined` : `'${typeName(target)}' object is not callable`);
    return target.call(args);
  }

  #arguments(nodes: readonly Expression[], scope: Scope): Arguments {
    const positional: Value[] = [];
    const named = new Map<string, Value>();
    for (const node of nodes) {
      if (node.type === "SpreadExpression") positional.push(...items(this.evaluate(node.argument, scope)));
      else if (node.type === "KeywordArgumentExpression") named.set(node.key.value, this.evaluate(node.value, scope));
      else if (node.type === "KeywordSpreadExpression") {
        const dict = this.evaluate(node.argument, scope);
        if (!isDict(dict)) throw new TemplateError("Argument after ** must be a mapping.");
        for (const [key, value] of dict) named.set(toText(key), value);
      } else positional.push(this.evaluate(node, scope));
    }
    return { positional, named };
  }
}

function lookUp(scope: Scope, name: string): Value {
  const value = scope.get(name);
  return value === undefined ? new Undefined(name) : value;
}

function failSlice(value: Value): never {
  throw new TemplateError(`A ${typeName(value)} is no slice index.`);
}

function describe(callee: CallExpression["callee"]): string {
  return callee.type === "Identifier" ? callee.value : callee.type === "MemberExpression" && callee.property.type === "Identifier" ? callee.property.value : "the value";
}

function loopFacts(list: readonly Value[], index: number): Namespace {
  return new Namespace(
    new Map<string, Value>([
      ["index", index + 1],
      ["index0", index],
      ["revindex", list.length - index],
      ["revindex0", list.length - index - 1],
      ["first", index === 0],
      ["last", index === list.length - 1],
      ["length", list.length],
      ["previtem", index > 0 ? list[index - 1]! : new Undefined("previtem")],
      ["nextitem", index + 1 < list.length ? list[index + 1]! : new Undefined("nextitem")],
    ]),
  );
}

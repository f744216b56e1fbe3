/** Python's operators. */
import { contains } from "./methods.ts";
import { Float, TemplateError, Tuple, compare, isEqual, isList, items, toNumber, toText, typeName, type Value } from "./values.ts";

export function binary(operator: string, left: Value, right: Value): Value {
  switch (operator) {
    case "==":
      return isEqual(left, right);
    case "!=":
      return !isEqual(left, right);
    case "<":
      return compare(left, right) < 0;
    case ">":
      return compare(left, right) > 0;
    case "<=":
      return compare(left, right) <= 0;
    case ">=":
      return compare(left, right) >= 0;
    case "in":
      return contains(right, left);
    case "not in":
      return !contains(right, left);
    case "~":
      return toText(left) + toText(right);
    default:
      return arithmetic(operator, left, right);
  }
}

export function negate(value: Value): Value {
  const number = toNumber(value);
  if (number === null) throw new TemplateError(`bad operand type for unary -: '${typeName(value)}'`);
  return value instanceof Float ? new Float(-number) : typeof value === "bigint" ? -value : -number;
}

function arithmetic(operator: string, left: Value, right: Value): Value {
  if (operator === "+") {
    if (typeof left === "string" && typeof right === "string") return left + right;
    if (isList(left) && isList(right)) return [...left, ...right];
    if (left instanceof Tuple && right instanceof Tuple) return new Tuple([...left.items, ...right.items]);
  }
  if (operator === "*" && typeof left === "string" && typeof right === "number") return left.repeat(Math.min(Math.max(right, 0), 10_000));
  if (operator === "%" && typeof left === "string") return formatText(left, right);
  const [a, b] = [toNumber(left), toNumber(right)];
  if (a === null || b === null) throw new TemplateError(`unsupported operand type(s) for ${operator}: '${typeName(left)}' and '${typeName(right)}'`);
  if (b === 0 && ["/", "//", "%"].includes(operator)) throw new TemplateError("division by zero");
  const isFloat = left instanceof Float || right instanceof Float || operator === "/" || (operator === "**" && b < 0);
  const result = compute(operator, a, b);
  return isFloat ? new Float(result) : result;
}

function compute(operator: string, a: number, b: number): number {
  switch (operator) {
    case "+":
      return a + b;
    case "-":
      return a - b;
    case "*":
      return a * b;
    case "/":
      return a / b;
    case "//":
      return Math.floor(a / b);
    case "%":
      return a - Math.floor(a / b) * b;
    case "**":
      return a ** b;
    default:
      throw new TemplateError(`No operator '${operator}'.`);
  }
}

/** `"%s and %d" % (a, b)`, with the two conversions that templates use. */
function formatText(format: string, values: Value): string {
  const rest = values instanceof Tuple ? [...items(values)] : [values];
  return format.replaceAll(/%[sd%]/g, (code) => {
    if (code === "%%") return "%";
    if (rest.length === 0) throw new TemplateError("not enough arguments for format string");
    return toText(rest.shift()!);
  });
}

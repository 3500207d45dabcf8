"""Small mistakes made in the source on purpose: which there are, and which are chosen.

A mistake (mutant) replaces one node of the syntax tree. It is named by its file, its function, its
kind and its number within the function, and chosen by a hash of that name and of the old text: code
that is added elsewhere does not change which mutants are drawn.
"""

import ast
import hashlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

COMPARISONS = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
}
ARITHMETIC = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Pow: ast.Mult,
    ast.Mod: ast.FloorDiv,
}
PAIRS = [
    ("min", "max"),
    ("amin", "amax"),
    ("argmin", "argmax"),
    ("minimum", "maximum"),
    ("clamp_min", "clamp_max"),
    ("sum", "mean"),
    ("any", "all"),
    ("floor", "ceil"),
    ("exp", "expm1"),
    ("log", "log1p"),
    ("zeros", "ones"),
    ("zeros_like", "ones_like"),
]
NAMES = {old: new for pair in PAIRS for old, new in (pair, pair[::-1])}
# Methods whose result has the shape of what they are called on.
DROPPED = {"abs", "detach", "sqrt", "square", "relu", "sigmoid", "neg", "clone", "exp", "log"}
# Messages and types are no part of what is computed.
QUIET = (ast.Raise, ast.Assert, ast.JoinedStr, ast.Import, ast.ImportFrom)


@dataclass(frozen=True)
class Mutant:
    """One mistake.

    Attributes:
        name: file, function, kind and number, which stay the same when other code is added.
        file: relative to the source folder.
        line: where it is today.
        start: first byte of the old text in the file.
        old: the text that is replaced.
        new: the text that takes its place.
    """

    name: str
    file: str
    line: int
    start: int
    old: str
    new: str

    def applied(self, source: bytes) -> bytes:
        """Return the source with the mistake in it."""
        old = self.old.encode()
        end = self.start + len(old)
        if source[self.start : end] != old:
            raise ValueError(f"{self.name}: {self.old!r} is not at its place; list mutants anew")
        return source[: self.start] + self.new.encode() + source[end:]


def changes(node: ast.AST) -> Iterator[tuple[str, ast.AST]]:
    """All mistakes that one node can be given: their kind, and the node that takes its place."""
    match node:
        case ast.Compare(ops=[op]) if type(op) in COMPARISONS:
            new = COMPARISONS[type(op)]()
            yield "compare", ast.Compare(node.left, [new], node.comparators)
        case ast.BinOp(op=op) if type(op) in ARITHMETIC and not isinstance(
            node.left, ast.JoinedStr
        ):
            yield "arithmetic", ast.BinOp(node.left, ARITHMETIC[type(op)](), node.right)
            yield "drop term", node.left
        case ast.UnaryOp(op=ast.USub() | ast.Not()):
            yield "drop sign", node.operand
        case ast.BoolOp():
            other = ast.Or() if isinstance(node.op, ast.And) else ast.And()
            yield "and or", ast.BoolOp(other, node.values)
        case ast.Constant(value=bool()):
            yield "flag", ast.Constant(not node.value)
        case ast.Constant(value=int() | float()):
            yield "number", ast.Constant(node.value + 1 if node.value in (0, 1) else node.value * 2)
        case ast.Call(func=ast.Attribute(attr=attr) as func) if attr in DROPPED and not node.args:
            yield "drop call", func.value
    match node:
        case ast.Call(func=ast.Attribute(attr=attr) as func) if attr in NAMES:
            yield "other name", _called(node, ast.Attribute(func.value, NAMES[attr]))
        case ast.Call(func=ast.Name(id="min" | "max" | "any" | "all" as name)):
            yield "other name", _called(node, ast.Name(NAMES[name]))
        case ast.If(test=test):
            yield "condition", ast.UnaryOp(ast.Not(), test)
        case ast.IfExp(body=body, orelse=orelse, test=test):
            yield "condition", ast.IfExp(test, orelse, body)
        case ast.Expr(value=ast.Call()):
            yield "drop statement", ast.Pass()
        case ast.AugAssign():
            yield "drop statement", ast.Pass()


def _called(call: ast.Call, func: ast.expr) -> ast.Call:
    return ast.Call(func, call.args, call.keywords)


def mutants_of(root: Path, file: str) -> list[Mutant]:
    """All mutants of one file, in the order of its text."""
    source = (root / file).read_bytes()
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    count: Counter[str] = Counter()
    found = []
    for where, node in _nodes(ast.parse(source), ""):
        # The condition of an `if` is what is replaced, not all that depends on it.
        place = node.test if isinstance(node, ast.If) else node
        for kind, new in changes(node):
            start = starts[place.lineno - 1] + place.col_offset
            end = starts[place.end_lineno - 1] + place.end_col_offset
            title = f"{file} {where} {kind}"
            count[title] += 1
            # In brackets, as what stands around it may bind more strongly.
            text = ast.unparse(new) if isinstance(new, ast.stmt) else f"({ast.unparse(new)})"
            old = source[start:end].decode()
            found.append(Mutant(f"{title} {count[title]}", file, place.lineno, start, old, text))
    return found


def _nodes(parent: ast.AST, where: str) -> Iterator[tuple[str, ast.AST]]:
    """Every node whose value counts, with the name of the function it stands in."""
    for field, value in ast.iter_fields(parent):
        if field in ("annotation", "returns", "decorator_list", "bases"):
            continue
        for node in value if isinstance(value, list) else [value]:
            if not isinstance(node, ast.AST) or isinstance(node, QUIET) or _warns(node):
                continue
            if _is_axis(parent, node):
                continue
            inside = where
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                inside = f"{where}.{node.name}".lstrip(".")
            yield where or "module", node
            yield from _nodes(node, inside)


def _warns(node: ast.AST) -> bool:
    text = ast.unparse(node) if isinstance(node, ast.Expr) else ""
    return text.startswith(("warnings.warn", "logger.", "'", '"'))


def _is_axis(parent: ast.AST, node: ast.AST) -> bool:
    """Whether it says along which axis: another one fails at once, which measures nothing."""
    method = isinstance(parent, ast.Call) and isinstance(parent.func, ast.Attribute)
    return method and isinstance(node, ast.Constant) and node.value in (0, 1)


def chosen(root: Path, files: list[str], number: int, *, seed: int, most: int) -> list[Mutant]:
    """A sample of the mutants of some files: not two in a line, at most so many in a file."""

    def rank(mutant: Mutant) -> str:
        return hashlib.sha256(f"{seed} {mutant.name} {mutant.old}".encode()).hexdigest()

    in_file: Counter[str] = Counter()
    lines: set[tuple[str, int]] = set()
    picked: list[Mutant] = []
    for mutant in sorted((m for file in files for m in mutants_of(root, file)), key=rank):
        if len(picked) == number:
            break
        if in_file[mutant.file] < most and (mutant.file, mutant.line) not in lines:
            in_file[mutant.file] += 1
            lines.add((mutant.file, mutant.line))
            picked.append(mutant)
    return picked

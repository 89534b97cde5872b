"""Faults in Python: comparisons, conditions, whole numbers, truths, and columns of patches."""

from __future__ import annotations

import ast
from collections.abc import Collection

Edit = tuple[int, int, str]

COMPARED: dict[type[ast.cmpop], tuple[str, str]] = {
    ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="),
    ast.Lt: ("<", "<="),
    ast.LtE: ("<=", "<"),
    ast.Gt: (">", ">="),
    ast.GtE: (">=", ">"),
    ast.Is: ("is", "is not"),
    ast.IsNot: ("is not", "is"),
    ast.In: ("in", "not in"),
    ast.NotIn: ("not in", "in"),
}


def edits(source: str, columns: Collection[str]) -> list[Edit]:
    """Every fault of this module; `columns` are the names that a patch can have."""
    tree = ast.parse(source)
    found = _Finder(source, columns)
    found.visit(tree)
    return sorted(set(found.edits))


class _Finder(ast.NodeVisitor):
    def __init__(self, source: str, columns: Collection[str]) -> None:
        self.edits: list[Edit] = []
        self._source = source
        self._columns = columns
        self._lines = [0]
        for line in source.splitlines(keepends=True):
            self._lines.append(self._lines[-1] + len(line))

    def _at(self, line: int, column: int) -> int:
        # Columns of the tree count bytes.
        start = self._lines[line - 1]
        text = self._source[start : self._lines[line]].encode()[:column]
        return start + len(text.decode())

    def _span(self, node: ast.expr | ast.stmt) -> tuple[int, int]:
        end_line, end_column = node.end_lineno or node.lineno, node.end_col_offset or 0
        return self._at(node.lineno, node.col_offset), self._at(end_line, end_column)

    def _text(self, node: ast.expr) -> str:
        start, end = self._span(node)
        return self._source[start:end]

    def visit_Compare(self, node: ast.Compare) -> None:
        left = node.left
        for operator, right in zip(node.ops, node.comparators, strict=True):
            old, new = COMPARED[type(operator)]
            between = self._span(left)[1]
            start = self._source.find(old, between, self._span(right)[0])
            if start >= 0:
                self.edits.append((start, start + len(old), new))
            left = right
        self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        old, new = ("and", "or") if isinstance(node.op, ast.And) else ("or", "and")
        for left, right in zip(node.values, node.values[1:], strict=False):
            start = self._source.find(old, self._span(left)[1], self._span(right)[0])
            self.edits.append((start, start + len(old), new))
        self.generic_visit(node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> None:
        if isinstance(node.op, ast.Not):
            start, end = self._span(node)
            self.edits.append((start, end, f"({self._text(node.operand)})"))
        self.generic_visit(node)

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        """How a record is declared (frozen, by keywords only) is no rule of what happens."""
        for each in node.body:
            self.visit(each)

    def visit_keyword(self, node: ast.keyword) -> None:
        """`strict` of `zip` states what holds by construction."""
        if node.arg != "strict":
            self.visit(node.value)

    def visit_If(self, node: ast.If) -> None:
        if self._text(node.test) != "TYPE_CHECKING":
            self._negate(node.test)
        self.generic_visit(node)

    def visit_IfExp(self, node: ast.IfExp) -> None:
        self._negate(node.test)
        self.generic_visit(node)

    def visit_comprehension(self, node: ast.comprehension) -> None:
        for test in node.ifs:
            self._negate(test)
        self.generic_visit(node)

    def _negate(self, test: ast.expr) -> None:
        """Comparisons have faults of their own, which are as good."""
        if not isinstance(test, ast.Compare | ast.BoolOp | ast.UnaryOp | ast.NamedExpr):
            start, end = self._span(test)
            self.edits.append((start, end, f"(not {self._text(test)})"))

    def visit_Constant(self, node: ast.Constant) -> None:
        start, end = self._span(node)
        if isinstance(node.value, bool):
            self.edits.append((start, end, str(not node.value)))
        elif isinstance(node.value, int):
            self.edits.append((start, end, str(node.value + 1)))

    def visit_Dict(self, node: ast.Dict) -> None:
        """A patch that forgets one of its columns."""
        for key, value in zip(node.keys, node.values, strict=True):
            if isinstance(key, ast.Constant) and key.value in self._columns:
                start, end = self._span(key)[0], self._span(value)[1]
                comma = self._source[end:].lstrip().startswith(",")
                after = self._source.find(",", end) + 1 if comma else end
                self.edits.append((start, after, ""))
        self.generic_visit(node)

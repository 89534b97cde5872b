"""The rules of tidiness, each a function from one file to the places that break it.

A rule sees a path relative to the checkout and the file's text, nothing else, so that it can be
tried on a planted violation. Which files a rule is asked about is decided in test_tidy.py.
"""

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import PurePosixPath

Function = ast.FunctionDef | ast.AsyncFunctionDef

FILE_LINES_MAX = 500
LONG_FILES = {"protocol.py", "states.py", "errors.py"}
FUNCTION_LINES_MAX = 60
POSITIONAL_MAX = 4
STATEMENT_LINES_MAX = 60
PUBLIC_NAMES_MAX = 85

VAGUE_NAMES = re.compile(r"_*(utils?|common|helpers?|types|managers?|misc|stuff)")
# Written in pieces, or this file would break the rules it holds.
UNFINISHED = re.compile(r"\b(TO" r"DO|FIX" r"ME|XX" r"X)\b")
REFERENCES = re.compile(
    r"(?<![\w&])#\d+"
    r"|\b(?:issue|ticket|bug|pr|pull request|rfc)s?[ -]?#?\d+"
    r"|\b(?:this|previous) (?:issue|session|ticket|pull request)\b"
    r"|§\s?\d|\b(?:rules|design|house|core|ops|engine|surface|conformance)\.md\b",
    re.IGNORECASE,
)
FINDINGS = re.compile(r"\bF\d{1,2}\b")
DATES = re.compile(r"\b20\d\d-\d\d\b")
MACHINE_PATHS = re.compile(r"(?<![\w.~}])/(?:root|home/\w+|Users/\w+|work|opt)(?:/|\b)")
REGISTRIES = re.compile(
    r"\b(?:py"
    r"pi\.org|python"
    r"hosted\.org|anaconda"
    r"\.org|npm"
    r"js\.(?:org|com)"
    r"|crates"
    r"\.io|docker"
    r"\.io)\b"
)
UNSAFE_MODULES = {"pickle", "cPickle", "dill", "marshal", "shelve"}
STORE_MAY_IMPORT = {
    f"flowfabric.core.{module}"
    for module in (
        "entries",
        "documents",
        "ids",
        "model",
        "retention",
        "states",
        "transition",
        "flow.changes",
        "flow.model",
        "flow.views",
    )
}
# A statement is named `name`, or `name@dialect` where the stores have variants of their own.
SQL_NAME = re.compile(r"^--\s*name:(.*)$")
SQL_TITLE = re.compile(r" ([a-z][a-z0-9_]*)(?:@[a-z]+)?")


@dataclass(frozen=True, slots=True)
class Source:
    """One file of the checkout: its path from the root, with forward slashes, and its text."""

    path: str
    text: str

    @property
    def name(self) -> str:
        return PurePosixPath(self.path).name

    def tree(self) -> ast.Module:
        return parsed(self)

    def at(self, line: int, what: str) -> str:
        return f"{self.path}:{line}: {what}"


@lru_cache(maxsize=1)
def parsed(source: Source) -> ast.Module:
    """Kept for the next rule that is asked about the same file; more would not fit."""
    return ast.parse(source.text, source.path)


def long_file(source: Source) -> Iterator[str]:
    lines = source.text.count("\n")
    if lines > FILE_LINES_MAX and source.name not in LONG_FILES:
        yield source.at(1, f"{lines} lines, {FILE_LINES_MAX} at most")


def long_function(source: Source) -> Iterator[str]:
    for node in functions(source):
        lines = (node.end_lineno or node.lineno) - node.lineno + 1
        if lines > FUNCTION_LINES_MAX:
            yield source.at(node.lineno, f"{node.name} has {lines} lines")


def many_positional(source: Source) -> Iterator[str]:
    for node in functions(source):
        if node.name.startswith("test_") or is_marked(node, "fixture", "overload"):
            continue
        names = [argument.arg for argument in [*node.args.posonlyargs, *node.args.args]]
        given = names[1:] if names[:1] in (["self"], ["cls"]) else names
        if len(given) > POSITIONAL_MAX:
            yield source.at(node.lineno, f"{node.name} takes {len(given)} positional parameters")


def vague_module(source: Source) -> Iterator[str]:
    for part in PurePosixPath(source.path).with_suffix("").parts:
        if VAGUE_NAMES.fullmatch(part):
            yield source.at(1, f"the name {part!r} does not say what lives there")


def unfinished(source: Source) -> Iterator[str]:
    for number, line in enumerate(source.text.splitlines(), 1):
        if found := UNFINISHED.search(line):
            yield source.at(number, f"{found[0]}: finish it or leave it out")


def history(source: Source) -> Iterator[str]:
    """Comments and docstrings speak of the present; tickets and dates have other places."""
    for line, text in [*comments(source), *docstrings(source)]:
        for pattern in (REFERENCES, FINDINGS):
            if found := pattern.search(text):
                yield source.at(line, f"refers to {found[0]!r}")
    for line, text in comments(source):
        if found := DATES.search(text):
            yield source.at(line, f"dated {found[0]!r}")


def silenced_types(source: Source) -> Iterator[str]:
    for line, text in comments(source):
        # That an async function is a function, too, cannot be said without it.
        if text == "# type: ignore[overload-overlap]":
            continue
        if re.search(r"#\s*type:\s*ignore|#\s*mypy:", text):
            yield source.at(line, "silences the type checker")


def sleeps(source: Source) -> Iterator[str]:
    for node in ast.walk(source.tree()):
        if not isinstance(node, ast.Call) or called(node) not in SLEEPS:
            continue
        zero = [isinstance(arg, ast.Constant) and arg.value == 0 for arg in node.args]
        if called(node) == "time.sleep" or zero != [True]:
            yield source.at(node.lineno, "sleeps: wait for an event or move the clock")


SLEEPS = {"time.sleep", "asyncio.sleep", "anyio.sleep", "sleep"}


def skips(source: Source) -> Iterator[str]:
    skipping = {"pytest.skip", "pytest.importorskip", "pytest.mark.skip", "pytest.mark.skipif"}
    for node in ast.walk(source.tree()):
        if isinstance(node, ast.Attribute) and dotted(node) in skipping:
            yield source.at(node.lineno, f"{dotted(node)}: a test runs or does not exist")


def unsafe_code(source: Source) -> Iterator[str]:
    for node in ast.walk(source.tree()):
        if isinstance(node, ast.Call) and called(node) in {"eval", "exec"}:
            yield source.at(node.lineno, f"calls {called(node)}")
        for module in imported(node):
            if module.split(".")[0] in UNSAFE_MODULES:
                yield source.at(getattr(node, "lineno", 1), f"imports {module}")


def prints(source: Source) -> Iterator[str]:
    for node in ast.walk(source.tree()):
        if isinstance(node, ast.Call) and called(node) == "print":
            yield source.at(node.lineno, "prints; only the command line does")


def impure_ids(source: Source) -> Iterator[str]:
    """Ids made from chance or a clock; in the core they arrive as arguments."""
    for node in ast.walk(source.tree()):
        name = node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")
        names = [alias.name for alias in node.names] if isinstance(node, ast.ImportFrom) else [name]
        for found in {"uuid1", "uuid4", "uuid6", "uuid7", "getnode"}.intersection(names):
            yield source.at(getattr(node, "lineno", 1), f"uses {found}")


def decisions_in_store(source: Source) -> Iterator[str]:
    """A store imports the words of the core and none of its rules."""
    for node in ast.walk(source.tree()):
        if isinstance(node, ast.ImportFrom) and node.module == "flowfabric.core":
            modules = [f"flowfabric.core.{alias.name}" for alias in node.names]
        else:
            modules = imported(node)
        for module in modules:
            if module.startswith("flowfabric.core") and module not in STORE_MAY_IMPORT:
                yield source.at(getattr(node, "lineno", 1), f"imports {module}")


def loose_types(source: Source) -> Iterator[str]:
    for node in ast.walk(source.tree()):
        names = [alias.name for alias in node.names] if isinstance(node, ast.ImportFrom) else []
        by_name = isinstance(node, ast.Attribute) and dotted(node) == "typing.Any"
        if by_name or "Any" in names:
            yield source.at(getattr(node, "lineno", 1), "uses Any; only a codec may")


def added_await(source: Source) -> Iterator[str]:
    for node in ast.walk(source.tree()):
        if isinstance(node, ast.AugAssign) and any(
            isinstance(inner, ast.Await) for inner in ast.walk(node.value)
        ):
            yield source.at(node.lineno, "reads the target before the await and loses updates")


def no_docstring(source: Source) -> Iterator[str]:
    if source.text.strip() and not ast.get_docstring(source.tree()):
        yield source.at(1, "no docstring that says what lives here")


def machine_words(source: Source) -> Iterator[str]:
    for number, line in enumerate(source.text.splitlines(), 1):
        for pattern in (MACHINE_PATHS, REGISTRIES):
            if found := pattern.search(line):
                yield source.at(number, f"{found[0]!r} belongs to one machine or registry")


def loose_requirement(source: Source) -> Iterator[str]:
    """Every locked package is one version with its hashes, from whatever index pip is told."""
    entries = re.split(r"\n(?=\S)", re.sub(r"\n +#.*", "", source.text).strip())
    for entry in entries:
        if not re.match(r"[\w.\[\]-]+==\S+ [^\n]*\\\n +--hash=sha256:[0-9a-f]{64}", entry):
            yield source.at(1, f"{entry.splitlines()[0]!r} is not a version with its hashes")
        if "://" in entry:
            yield source.at(1, f"{entry.splitlines()[0]!r} names an address")


def many_public_names(source: Source) -> Iterator[str]:
    for node in source.tree().body:
        targets = node.targets if isinstance(node, ast.Assign) else []
        if any(isinstance(target, ast.Name) and target.id == "__all__" for target in targets):
            count = len(ast.literal_eval(node.value)) if isinstance(node, ast.Assign) else 0
            if count > PUBLIC_NAMES_MAX:
                yield source.at(node.lineno, f"{count} public names, {PUBLIC_NAMES_MAX} at most")


@dataclass(frozen=True, slots=True)
class Statement:
    """One named statement of an SQL file: from its name to the line before the next name."""

    title: str
    line: int
    lines: tuple[str, ...]

    @property
    def name(self) -> str:
        return self.title.strip().partition("@")[0]


def statements(source: Source) -> list[Statement]:
    lines = source.text.splitlines()
    titles = [
        (number, found[1]) for number, line in enumerate(lines) if (found := SQL_NAME.match(line))
    ]
    ends = [*(number for number, _ in titles[1:]), len(lines)]
    return [
        Statement(title, start + 1, trimmed(lines[start:end]))
        for (start, title), end in zip(titles, ends, strict=False)
    ]


def trimmed(lines: list[str]) -> tuple[str, ...]:
    return tuple("\n".join(lines).strip().split("\n"))


def unnamed_sql(source: Source) -> Iterator[str]:
    """SQL before the first name, a bad name, or a name without a sentence under it."""
    for number, line in enumerate(source.text.splitlines(), 1):
        if SQL_NAME.match(line):
            break
        if line.strip() and not line.startswith("--"):
            yield source.at(number, "stands before the first named statement")
            break
    for statement in statements(source):
        if not SQL_TITLE.fullmatch(statement.title):
            yield source.at(statement.line, f"{statement.title!r} is no name of a statement")
        if any(line.rstrip().endswith(";") for line in statement.lines[:-1]):
            yield source.at(statement.line, f"{statement.name} is more than one statement")
        opening = opening_comment(statement)
        if not re.match(r"[A-Z].*\.", opening, re.DOTALL):
            yield source.at(statement.line, f"{statement.name} is not opened by a sentence")


def opening_comment(statement: Statement) -> str:
    words: list[str] = []
    for line in statement.lines[1:]:
        if not line.startswith("--"):
            break
        words.append(line.removeprefix("--").strip())
    return " ".join(words)


def long_statement(source: Source) -> Iterator[str]:
    for statement in statements(source):
        if len(statement.lines) > STATEMENT_LINES_MAX:
            what = f"{statement.name} has {len(statement.lines)} lines"
            yield source.at(statement.line, f"{what}, {STATEMENT_LINES_MAX} at most")


def unused_statement(source: Source, users: str) -> Iterator[str]:
    for statement in statements(source):
        is_part = f"{{{statement.name}}}" in source.text
        if not is_part and not re.search(rf"""["']{statement.name}["']""", users):
            yield source.at(statement.line, f"{statement.name} is not named by any store")


def functions(source: Source) -> Iterator[Function]:
    for node in ast.walk(source.tree()):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def is_marked(node: Function, *marks: str) -> bool:
    """Whether a decorator says so: a fixture, or an overload, which is never called."""
    said = [ast.unparse(decorator) for decorator in node.decorator_list]
    return any(mark in decorator for decorator in said for mark in marks)


def dotted(node: ast.expr) -> str:
    return ast.unparse(node) if isinstance(node, ast.Name | ast.Attribute) else ""


def called(node: ast.Call) -> str:
    return dotted(node.func)


def imported(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    return [node.module or ""] if isinstance(node, ast.ImportFrom) else []


@cache
def comments(source: Source) -> list[tuple[int, str]]:
    if source.path.endswith(".sql"):
        lines = enumerate(source.text.splitlines(), 1)
        return [(number, line[line.index("--") :]) for number, line in lines if "--" in line]
    tokens = tokenize.generate_tokens(io.StringIO(source.text).readline)
    return [(token.start[0], token.string) for token in tokens if token.type == tokenize.COMMENT]


def docstrings(source: Source) -> list[tuple[int, str]]:
    if source.path.endswith(".sql"):
        return []
    holders = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    nodes = [node for node in ast.walk(source.tree()) if isinstance(node, holders)]
    return [(node.body[0].lineno, text) for node in nodes if (text := ast.get_docstring(node))]

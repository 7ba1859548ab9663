"""Which function, type or CMake command encloses a line.

tree-sitter reads C and C++ without a compiler and gets over macros it cannot know. Where it gives
up, and in other languages, the last line that starts in the first column counts, as in git.
"""

import re
from collections.abc import Sequence
from functools import cache, lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tree_sitter import Node, Parser

FILE_SCOPE = "file scope"
_CPP = (".c", ".cc", ".cpp", ".cu", ".h", ".hpp", ".m", ".mm")
_TYPES = ("class_specifier", "struct_specifier", "union_specifier", "enum_specifier")
_NAMES = (
    "identifier", "qualified_identifier", "field_identifier", "destructor_name",
    "operator_name", "operator_cast", "type_identifier", "template_function",
)  # fmt: skip
_COMMAND = re.compile(r"\s*([A-Za-z_]\w*)\s*\(\s*([^\s()]*)")
_HEADER = re.compile(r"[A-Za-z_$].*")


@lru_cache(maxsize=256)
def scopes(path: str, data: bytes) -> tuple[str, ...]:
    """The scope of each line of a file, from the outside in, joined with ``::``."""
    lines = data.split(b"\n")
    if path.endswith(_CPP):
        return _cpp(data, lines)
    if path.endswith((".cmake", "CMakeLists.txt")):
        return _cmake([line.decode("utf-8", "replace") for line in lines])
    return _headers(lines)


def _cpp(data: bytes, lines: Sequence[bytes]) -> tuple[str, ...]:
    found = [FILE_SCOPE] * len(lines)
    broken = [False] * len(lines)
    todo: list[tuple[Node, str]] = [(_parser().parse(data).root_node, "")]
    while todo:
        node, outer = todo.pop()
        name = _name(node)
        inner = f"{outer}::{name}" if outer and name else outer or name
        if name:
            for line in range(node.start_point.row, node.end_point.row + 1):
                found[line] = inner
        if node.type == "ERROR":
            for line in range(node.start_point.row, node.end_point.row + 1):
                broken[line] = True
        if node.type != "function_definition":
            todo += [(child, inner) for child in reversed(node.named_children)]
    guessed = _headers(lines) if any(broken) else ()
    return tuple(
        guessed[line] if broken[line] and scope == FILE_SCOPE else scope
        for line, scope in enumerate(found)
    )


def _name(node: "Node") -> str:
    """The name a node gives to what is inside it, or ""."""
    if node.type in _TYPES and node.child_by_field_name("body"):
        named = node.child_by_field_name("name")
        return _text(named) if named else ""
    if node.type == "namespace_definition":
        named = node.child_by_field_name("name")
        return _text(named) if named else ""
    if node.type in ("function_definition", "init_declarator"):
        named = node.child_by_field_name("declarator")
        while named is not None and named.type not in _NAMES:
            deeper = named.child_by_field_name("declarator")
            if deeper is None:
                deeper = next((c for c in named.named_children if "declarator" in c.type), None)
            named = deeper
        return _text(named) if named else ""
    return ""


def _text(node: "Node") -> str:
    return "".join((node.text or b"").decode("utf-8", "replace").split())


@cache
def _parser() -> "Parser":
    import tree_sitter_cpp
    from tree_sitter import Language, Parser

    return Parser(Language(tree_sitter_cpp.language()))


def _cmake(lines: Sequence[str]) -> tuple[str, ...]:
    found: list[str] = []
    depth, name = 0, FILE_SCOPE
    for line in lines:
        code = re.sub(r'"(\\.|[^"\\])*"|#.*', "", line)
        if depth == 0:
            command = _COMMAND.match(line)
            name = f"{command[1]}({command[2]}" if command else FILE_SCOPE
        found.append(name)
        depth = max(0, depth + code.count("(") - code.count(")"))
    return tuple(found)


def _headers(lines: Sequence[bytes]) -> tuple[str, ...]:
    found: list[str] = []
    name = FILE_SCOPE
    for line in lines:
        header = _HEADER.match(line.decode("utf-8", "replace"))
        if header:
            name = " ".join(header[0].split())[:80]
        found.append(name)
    return tuple(found)

"""The strings of the source that people read: source files in, English templates with {} for each value out."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import bertworks

SOURCE = Path(bertworks.__file__).parent
# Functions and keywords whose text people read.
_CONSOLE = {"say", "warn", "localize", "fill", "begin_stage", "log"}
_CALLS = _CONSOLE | {"heading", "note", "fact_card", "collapsible", "table"}
_SENTENCE_END = re.compile(r"(?<=\.) (?=[A-Z])")
# Errors whose sentence a user reads; others are caught and reworded.
_ERRORS = ("BertworksError", "InputError", "SettingsError", "FolderError", "UsageError", "BadParameter")
_REQUEST_ERROR = "RequestError"  # of the HTTP server: a status, then the sentence
_EVENT_KEYWORDS = {"note", "warning", "stage"}


def template_of(node: ast.expr) -> str | None:
    """Return the text of a string or an f-string with {} for each value; None for anything else."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(str(part.value) if isinstance(part, ast.Constant) else "{}" for part in node.values)
    return None


def help_paragraphs(text: str) -> Iterator[str]:
    """Yield the paragraphs of a help text; of a block that keeps its lines, the lines."""
    for paragraph in text.split("\n\n"):
        lines = paragraph.split("\n")
        if lines[0].strip() == "\b":
            yield from (" ".join(line.split()) for line in lines[1:])
        else:
            yield " ".join(paragraph.split())


def parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def all_templates() -> set[str]:
    """Return every string of the source, docstrings by paragraph."""
    templates = set()
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(parse(path)):
            text = template_of(node) if isinstance(node, ast.expr) else None
            if text is not None:
                templates.update((text, *_SENTENCE_END.split(text)))
            if isinstance(node, ast.FunctionDef):
                templates.update(help_paragraphs(ast.get_docstring(node) or ""))
    return templates


def visible_templates() -> dict[str, str]:
    """Return what needs a translation -> where it is: help, console lines, notes of runs, headings of reports."""
    found: dict[str, str] = {}
    for path in sorted(SOURCE.rglob("*.py")):
        place = str(path.relative_to(SOURCE))
        for node in ast.walk(parse(path)):
            for text in _texts_of(node, place):
                if any(character.isalpha() for character in text.replace("{}", "")):
                    found.setdefault(text, place)
    return found


def error_templates() -> dict[str, str]:
    """Return the sentences of the errors that the source raises -> where they are."""
    found: dict[str, str] = {}
    for path in sorted(SOURCE.rglob("*.py")):
        place = path.relative_to(SOURCE).as_posix()
        tree = parse(path)
        for node in ast.walk(tree):
            for text in _sentences_of_error(node, tree):
                if len(re.findall("[a-z]+", text.replace("{}", ""))) > 2:
                    found.setdefault(text, place)
    return found


def _sentences_of_error(node: ast.AST, tree: ast.AST) -> Iterator[str]:
    """Yield the sentence of an error; all that the file assigns to its name, if it is a variable."""
    if not isinstance(node, ast.Call):
        return
    name = ast.unparse(node.func)
    first = 1 if name == _REQUEST_ERROR else 0
    if not name.endswith((*_ERRORS, _REQUEST_ERROR)) or len(node.args) <= first:
        return
    sentence = node.args[first]
    values = [sentence] if not isinstance(sentence, ast.Name) else _values_of(sentence.id, tree)
    for value in values:
        parts = [value.body, value.orelse] if isinstance(value, ast.IfExp) else [value]
        yield from (text for text in map(template_of, parts) if text is not None)


def _values_of(name: str, tree: ast.AST) -> list[ast.expr]:
    assignments = [node for node in ast.walk(tree) if isinstance(node, ast.Assign)]
    return [node.value for node in assignments if ast.unparse(node.targets[0]) == name]


def _texts_of(node: ast.AST, place: str) -> Iterator[str]:
    if isinstance(node, ast.Call):
        name = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
        arguments = node.args[:1] if name in _CALLS else node.args[2:3] if name == "choice" else []
        keywords = _EVENT_KEYWORDS if place.startswith("commands") else {"help"}
        arguments += [keyword.value for keyword in node.keywords if keyword.arg in keywords]
        if place == "cli/printers.py" and name in ("show", "show_step"):
            arguments += node.args
        if place.startswith("reports"):
            named = [keyword.value for keyword in node.keywords if keyword.arg in ("title", "unit", "name")]
            arguments += [value for value in named if template_of(value) != "{} loss"]  # by the name of the loss
            arguments += node.args[:1] if name in ("page_of", "PretrainVerdict") else []
            arguments += node.args if ast.unparse(node.func) == "absent.append" else []
        if name == "command_app":
            arguments += node.args[1:2]
        yield from (text for text in map(template_of, arguments) if text)
    if place.startswith("reports") and isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "titles":
        constants = (part for part in ast.walk(node.value) if isinstance(part, ast.Constant))
        yield from (text for text in map(template_of, constants) if text and "<" not in text and text.strip() == text)
    if place.startswith("folder_info") and isinstance(node, ast.Dict):
        yield from (text for text in map(template_of, filter(None, node.keys)) if text and not text.startswith("For"))
    if place == "cli/app.py" and isinstance(node, ast.Assign) and isinstance(node.value, ast.Dict):
        yield from (text for text in map(template_of, node.value.values) if text)
    if place.startswith("cli") and isinstance(node, ast.FunctionDef) and _is_command(node):
        yield from help_paragraphs(ast.get_docstring(node) or "")


def _is_command(node: ast.FunctionDef) -> bool:
    functions = [decorator.func for decorator in node.decorator_list if isinstance(decorator, ast.Call)]
    return any(isinstance(function, ast.Attribute) and function.attr == "command" for function in functions)

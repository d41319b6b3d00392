"""The reference of the site: the package in; Markdown pages of its API, command line, recipes and HTTP interface out.

`undocumented()` names every public name, option, recipe key and endpoint that says nothing about itself.
"""

from __future__ import annotations

import asyncio
import dataclasses
import inspect
import json
import os
import re
import types
import typing
from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any
from unittest.mock import patch

import typer

import bertworks
from bertworks.cli.app import COMMANDS
from bertworks.cli.help_text import localize_help
from bertworks.commands.compare.recipe import CompareRecipe
from bertworks.commands.finetune.recipe import FinetuneRecipe
from bertworks.commands.pretrain.recipe import PretrainRecipe
from bertworks.messages import localize
from docstring_columns import meanings_of, split_docstring

RECIPES = {"Pretraining": PretrainRecipe, "Fine-tuning": FinetuneRecipe, "Comparisons": CompareRecipe}
_FOLDERS = {"Pretraining": "", "Fine-tuning": "finetune", "Comparisons": "compare"}
Cells = tuple[str, ...]
_RECIPE_INTRO = (
    "A recipe is a TOML file. Any key can be set on the command line (`--set optimizer.beta2=0.98`) and in Python "
    '(`settings={"optimizer.beta2": 0.98}`). What a file leaves out has its default.'
)
_CLI_INTRO = "`bertworks COMMAND --help` prints the same."
# What the page of commands says beside their help, which is in the catalogue of messages.
_CLI_CHINESE = {
    "Command line": "命令行",
    _CLI_INTRO: "`bertworks COMMAND --help` 给出同样的说明；中文由 `LANG=zh_CN.UTF-8` 或 `BERTWORKS_LANG=zh` 选择。",
    "command": "命令", "what it does": "作用", "option": "选项", "meaning": "含义", "default": "默认值",
}  # fmt: skip
_HTTP_INTRO = "From `/openapi.json` of a server; [Serving](../serving.md) explains how it is used."


def pages() -> dict[str, str]:
    """Return the text of each page by its path in the site."""
    return {
        "reference/api.md": api_page(),
        "reference/cli.md": cli_page("en"),
        "reference/cli.zh.md": cli_page("zh"),
        "reference/recipes.md": recipe_page(),
        "reference/http.md": http_page(openapi()),
    }


def undocumented() -> list[str]:
    """Return what is public and has no description, sorted."""
    lacking = [*_undocumented_names(), *_undocumented_options(), *_undocumented_keys(), *_undocumented_operations()]
    return sorted(lacking)


# The Python API


def api_page() -> str:
    """Return the page of all public names; mkdocstrings replaces each by its signature and docstring."""
    kinds: dict[str, list[str]] = {"Functions": [], "Classes": [], "Exceptions": []}
    for name in bertworks.__all__:
        value = getattr(bertworks, name)
        is_exception = inspect.isclass(value) and issubclass(value, Exception)
        kinds["Exceptions" if is_exception else "Classes" if inspect.isclass(value) else "Functions"].append(name)
    parts = ["# Python API", "Everything below is a name of `import bertworks`."]
    for kind, names in kinds.items():
        parts.append(f"## {kind}")
        parts += [_api_entry(getattr(bertworks, name), f"bertworks.{name}") for name in names]
    bases = _base_classes([getattr(bertworks, name) for name in kinds["Classes"]])
    parts += ["## Base classes", "What the classes above inherit."]
    parts += [_api_entry(base, base.__qualname__) for base in bases]
    return "\n\n".join(parts) + "\n"


def _api_entry(value: Any, heading: str) -> str:
    options = f"    options:\n      heading: {heading}\n      toc_label: {heading.rpartition('.')[2]}"
    return f"::: {value.__module__}.{value.__qualname__}\n{options}"


def _base_classes(classes: Sequence[type]) -> list[type]:
    """Return the classes of the package that these inherit from and that are not among them, each once."""
    bases = [base for cls in classes for base in cls.__bases__ if base.__module__.startswith("bertworks.")]
    return [base for base in dict.fromkeys(bases) if base not in classes]


def _undocumented_names() -> Iterator[str]:
    for name in bertworks.__all__:
        value = getattr(bertworks, name)
        if not _has_own_doc(value):
            yield f"bertworks.{name}"
        if inspect.isclass(value) and not issubclass(value, Exception):
            yield from (f"bertworks.{name}.{member}" for member in _undocumented_members(value))


def _undocumented_members(value: type) -> Iterator[str]:
    """Yield the public methods and properties without a docstring; the class documents its fields."""
    fields = {field.name for field in dataclasses.fields(value)} if dataclasses.is_dataclass(value) else set()
    for name, member in vars(value).items():
        is_member = isinstance(member, property | classmethod | staticmethod | types.FunctionType)
        if is_member and not name.startswith("_") and name not in fields and not inspect.getdoc(member):
            yield name


def _has_own_doc(value: Any) -> bool:
    """Whether a docstring was written, rather than the signature that a dataclass gets for lack of one."""
    doc = value.__doc__ or ""
    return bool(doc) and not doc.startswith(f"{value.__name__}(")


# The command line


def cli_page(language: str) -> str:
    """Return the page of all commands with their arguments and options, in the words of their help in a language."""
    words = _CLI_CHINESE if language == "zh" else {}

    def titles(*names: str) -> Cells:
        return tuple(words.get(name, name) for name in names)

    with patch.dict(os.environ, BERTWORKS_LANG=language):
        parts = [f"# {words.get('Command line', 'Command line')}", words.get(_CLI_INTRO, _CLI_INTRO)]
        rows = [(f"[`{name}`](#bertworks-{name})", localize(text)) for name, text in COMMANDS.items()]
        parts.append(_table(titles("command", "what it does"), rows))
        for path, command in _commands():
            parts += [f"{'###' if ' ' in path else '##'} bertworks {path}", _localized_paragraphs(command.help or "")]
            if not hasattr(command, "commands"):
                parts.append(f"```text\nbertworks {path} {_usage(command)}\n```")
                parts.append(_table(titles("option", "meaning", "default"), list(map(_option_row, _options(command)))))
    return "\n\n".join(part for part in parts if part) + "\n"


def _localized_paragraphs(text: str) -> str:
    return "\n\n".join(map(_localized_paragraph, text.split("\n\n")))


def _localized_paragraph(text: str) -> str:
    lines = text.strip("\n").split("\n")
    if lines[0].strip() == "\b":  # help keeps its lines
        kept = [" " * (len(line) - len(line.lstrip())) + localize(" ".join(line.split())) for line in lines[1:]]
        return "```text\n" + "\n".join(kept) + "\n```"
    return localize(" ".join(text.split()))


def _option_row(option: Any) -> Cells:
    return f"`{_option_name(option)}`", localize_help(option.help or ""), _default(option)


def _commands() -> Iterator[tuple[str, Any]]:
    """Yield each command with its words, those of groups after their group."""
    for name in COMMANDS:
        command = typer.main.get_command(import_module(f"bertworks.cli.{name.replace('-', '_')}").app)
        yield name, command
        for child, subcommand in getattr(command, "commands", {}).items():
            yield f"{name} {child}", subcommand


def _options(command: Any) -> list[Any]:
    return [option for option in command.params if not getattr(option, "hidden", False) and option.name != "help"]


def _usage(command: Any) -> str:
    arguments = [option for option in _options(command) if option.param_type_name == "argument"]
    words = [argument.metavar if argument.required else f"[{argument.metavar}]" for argument in arguments]
    return " ".join([*words, "[OPTIONS]"])


def _option_name(option: Any) -> str:
    if option.param_type_name == "argument":
        return str(option.metavar)
    names = " / ".join([*option.opts, *option.secondary_opts])
    return names if option.is_flag else f"{names} {option.metavar}"


def _default(option: Any) -> str:
    if option.required:
        return localize("required")
    is_silent = option.default in (None, False, "", ()) or callable(option.default)
    return "" if is_silent else f"`{option.default}`"


def _undocumented_options() -> Iterator[str]:
    for path, command in _commands():
        if not command.help:
            yield f"bertworks {path}"
        if not hasattr(command, "commands"):
            yield from (f"bertworks {path} {option.name}" for option in _options(command) if not option.help)


# Recipes


def recipe_page() -> str:
    """Return the page of all recipe keys with their types, defaults and meanings, and of the built-in recipes."""
    parts = ["# Recipes", _RECIPE_INTRO]
    for title, recipe in RECIPES.items():
        parts += [f"## {title}", f"Built-in recipes:\n\n{_built_in_recipes(_FOLDERS[title])}"]
        for section, kind in _sections(recipe, ""):
            parts += [f"### {title}: `{section}`" if section else f"### {title}: top level", _prose(kind)]
            rows = [(f"`{key}`", _type_name(hint), _default_value(field), meaning)
                    for key, hint, field, meaning in _keys(kind)]  # fmt: skip
            parts.append(_table(("key", "type", "default", "meaning"), rows))
    return "\n\n".join(part for part in parts if part) + "\n"


def _built_in_recipes(folder: str) -> str:
    rows = []
    for path in sorted((Path(bertworks.__file__).parent / "recipes" / folder).glob("*.toml")):
        comment = " ".join(re.findall(r"^#\s*(.*)$", path.read_text(encoding="utf-8").split("\n\n")[0], re.MULTILINE))
        rows.append((f"`{path.stem}`", re.split(r"(?<=\.) ", comment)[0]))
    return _table(("recipe", "what it is"), rows)


def _sections(kind: Any, section: str) -> Iterator[tuple[str, Any]]:
    """Yield a settings class and those of its fields, with their TOML headings."""
    yield section, kind
    for name, hint in typing.get_type_hints(kind).items():
        inner = [argument for argument in (hint, *typing.get_args(hint)) if dataclasses.is_dataclass(argument)]
        if inner:
            heading = f"[[{name}]]" if typing.get_origin(hint) is tuple else f"[{name}]"
            yield from _sections(inner[0], heading)


def _keys(kind: Any) -> Iterator[tuple[str, Any, Any, str]]:
    """Yield the keys of a settings class that are values, not sections: name, type, field and meaning."""
    meanings, hints = meanings_of(kind.__doc__ or ""), typing.get_type_hints(kind)
    for field in dataclasses.fields(kind):
        hint = hints[field.name]
        if not any(dataclasses.is_dataclass(argument) for argument in (hint, *typing.get_args(hint))):
            yield field.name, hint, field, meanings.get(field.name, "")


def _prose(kind: Any) -> str:
    return "\n\n".join(part for part in split_docstring(kind.__doc__ or "") if isinstance(part, str))


def _type_name(hint: Any) -> str:
    name = str(hint) if typing.get_args(hint) else getattr(hint, "__name__", str(hint))
    for old, new in (("pathlib.", ""), ("typing.", ""), (" | None", ""), (", ...", "")):
        name = name.replace(old, new)
    return name.replace("|", "or")


def _default_value(field: dataclasses.Field[Any]) -> str:
    if field.default is dataclasses.MISSING:
        return "" if field.default_factory is not dataclasses.MISSING else "required"
    return "" if field.default in (None, "", ()) else f"`{json.dumps(field.default)}`"


def _undocumented_keys() -> Iterator[str]:
    for title, recipe in RECIPES.items():
        for section, kind in _sections(recipe, ""):
            yield from (f"{title} recipe {section} {key}" for key, _, _, meaning in _keys(kind) if not meaning)


# HTTP


def openapi() -> dict[str, Any]:
    """Return the OpenAPI document of a server without models."""
    from bertworks.serving.server import ServeRequest, load_app

    serving_app = load_app(ServeRequest(models=()))
    try:
        return asyncio.run(_get_json(serving_app.app, "/openapi.json"))
    finally:
        serving_app.close()


async def _get_json(app: Any, path: str) -> dict[str, Any]:
    """Return the JSON that an ASGI app answers to a GET request."""
    body = b""

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: dict[str, Any]) -> None:
        nonlocal body
        body += message.get("body", b"")

    scope = {"type": "http", "http_version": "1.1", "method": "GET", "path": path, "raw_path": path.encode(),
             "query_string": b"", "headers": [(b"host", b"127.0.0.1")], "client": ("127.0.0.1", 1),
             "server": ("127.0.0.1", 80), "scheme": "http", "root_path": ""}  # fmt: skip
    await app(scope, receive, send)
    document: dict[str, Any] = json.loads(body)
    return document


def http_page(document: dict[str, Any]) -> str:
    """Return the page of all endpoints with the fields of their requests and responses."""
    operations = list(_operations(document))
    rows = [(f"`{method} {path}`", operation.get("description", "")) for method, path, operation in operations]
    parts = ["# HTTP", _HTTP_INTRO, _table(("endpoint", "what it does"), rows)]
    for method, path, operation in operations:
        parts += [f"## {method} {path}", operation.get("description", "")]
        parameters = [(f"`{parameter['name']}`", parameter["in"]) for parameter in operation.get("parameters", [])]
        parts.append(_table(("parameter", "in"), parameters) if parameters else "")
        bodies = {"Request": operation.get("requestBody", {}), "Response": operation["responses"].get("200", {})}
        for title, content in bodies.items():
            schema = content.get("content", {}).get("application/json", {}).get("schema")
            parts += [f"**{title}**", *_schema(schema, document)] if schema else []
    return "\n\n".join(part for part in parts if part) + "\n"


def _operations(document: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, methods in document["paths"].items():
        yield from ((method.upper(), path, operation) for method, operation in methods.items())


def _schema(schema: dict[str, Any], document: dict[str, Any]) -> Iterator[str]:
    name = schema.get("$ref", "").rpartition("/")[2]
    schema = document["components"]["schemas"][name] if name else schema
    rows = [(f"`{key}`", _json_type(value), value.get("description", ""))
            for key, value in schema.get("properties", {}).items()]  # fmt: skip
    yield _table(("field", "type", "meaning"), rows) if rows else _json_type(schema)
    for example in schema.get("examples", []):
        yield f"```json\n{json.dumps(example, ensure_ascii=False, indent=2)}\n```"


def _json_type(schema: dict[str, Any]) -> str:
    if "$ref" in schema:
        return str(schema["$ref"].rpartition("/")[2])
    if "anyOf" in schema:
        return " or ".join(map(_json_type, schema["anyOf"]))
    if schema.get("type") == "array":
        return f"list of {_json_type(schema['items'])}" if "items" in schema else "list"
    return str(schema.get("type", "any"))


def _undocumented_operations() -> Iterator[str]:
    for method, path, operation in _operations(openapi()):
        if not operation.get("description"):
            yield f"{method} {path}"


def _table(titles: Cells, rows: Sequence[Cells]) -> str:
    """Return a Markdown table."""
    lines = [titles, ("---",) * len(titles), *rows]
    return "\n".join(f"| {' | '.join(_cell(cell) for cell in line)} |" for line in lines)


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")

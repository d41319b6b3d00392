"""The built-in corpus: the documentation of the running Python in, one RawDocument of English prose per module out.

Language topics, docstrings of the standard library and of installed packages, and package descriptions are parsed from
files; nothing is imported or executed. Code, tables and signatures are dropped, sentences are kept.
"""

from __future__ import annotations

import ast
import os
import re
import sys
import sysconfig
import warnings
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib import metadata
from inspect import cleandoc
from pathlib import Path

from bertworks.errors import InputError
from bertworks.text.document import Counts, RawDocument

# Folders with tests, copies of other projects or generated files.
SKIPPED_FOLDER = re.compile(
    r"__pycache__|_?vendor(ed)?|third_party|extern(als)?|_bundled|tests?|idle_test|lib2to3|pydoc_data|benchmarks"
    r"|examples|fixtures|site-packages|dist-packages"
)
MAX_FILE_BYTES = 1_000_000  # larger modules are tables or generated
MAX_PACKAGE_BYTES = 1_000_000  # limit of prose per package, divided among its parts
MAX_PART_FILES = 2_000  # a package with more files is split into parts for parallel reading

OWN_PACKAGE = "bertworks"  # excluded: the corpus must not change with every version of this project
# Parts that are not one package; unlike package names, these are not identifiers.
SINGLE_FILES, DESCRIPTIONS = "single-files", "long-descriptions"
TOPIC_RANGES = ("a-f", "g-m", "n-s", "t-z")


@dataclass(frozen=True, slots=True)
class PythonPaths:
    """The folder of the standard library and the folders of installed packages."""

    library: Path
    packages: tuple[Path, ...]


def running_python_paths() -> PythonPaths:
    """Return the paths of the running interpreter, in import order."""
    paths = sysconfig.get_paths()
    package_folders = [path for path in sys.path if Path(path).name in ("site-packages", "dist-packages")]
    folders = dict.fromkeys(Path(path) for path in [*package_folders, paths["purelib"], paths["platlib"]])
    return PythonPaths(Path(paths["stdlib"]), tuple(folder for folder in folders if folder.is_dir()))


def parts(paths: PythonPaths | None = None) -> list[str]:
    """Return the sorted names of all parts: "topics:a-f", "stdlib:asyncio", "package:numpy", "package:torch/1-of-2"."""
    paths = paths or running_python_paths()
    names = [f"topics:{letters}" for letters in TOPIC_RANGES if _topics_file(paths).is_file()]
    for kind, roots in (("stdlib", (paths.library,)), ("package", paths.packages)):
        for package, folder in _packages(roots).items():
            names += _slice_names(f"{kind}:{package}", len(_modules(folder)))
        if any(_single_files(root) for root in roots):
            names.append(f"{kind}:{SINGLE_FILES}")
    if any(metadata.distributions(path=[str(root) for root in paths.packages])):
        names.append(f"package:{DESCRIPTIONS}")
    return sorted(names)


def read(part: str, paths: PythonPaths | None = None, counts: Counts | None = None) -> Iterator[RawDocument]:
    """Yield one document for each module, topic or description of `part` that has prose; one paragraph per line.

    Repeated paragraphs of a part are dropped. Everything that is dropped is added to `counts`.
    """
    counts = Counts() if counts is None else counts
    sources, limit = _sources(part, paths or running_python_paths(), counts)
    return _raw_documents(sources, limit, counts)


# --- sources ---------------------------------------------------------------------------------------------------------

# A name and its raw texts in order; the texts are read lazily, one file at a time.
DocTexts = tuple[str, Iterable[str]]


def _raw_documents(sources: Iterable[DocTexts], limit: int, counts: Counts) -> Iterator[RawDocument]:
    seen_texts: set[int] = set()
    seen_paragraphs: set[int] = set()

    def is_new(text: str, seen: set[int]) -> bool:
        size_before = len(seen)
        seen.add(hash(text))  # not the text itself, to save memory
        counts["python-docs: texts and paragraphs dropped, repeated"] += len(seen) == size_before
        return len(seen) > size_before

    size = 0
    for name, texts in sources:
        if size >= limit:
            counts["python-docs: modules skipped, limit of the package reached"] += 1
            continue
        paragraphs = (line for text in texts if is_new(text, seen_texts) for line in prose(text, counts))
        text = "\n".join(paragraph for paragraph in paragraphs if is_new(paragraph, seen_paragraphs))
        size += len(text.encode())
        if text:
            yield RawDocument(text, f"python-docs/{name}", "paragraphs")


def _sources(part: str, paths: PythonPaths, counts: Counts) -> tuple[Iterator[DocTexts], int]:
    """Return the texts of a part and the limit of its prose in bytes."""
    kind, _, name = part.partition(":")
    roots = {"stdlib": (paths.library,), "package": paths.packages}.get(kind, ())
    if kind == "topics" and name in TOPIC_RANGES and _topics_file(paths).is_file():
        return _topics(_topics_file(paths), name, counts), MAX_PACKAGE_BYTES
    if part == f"package:{DESCRIPTIONS}":
        return _descriptions(roots), MAX_PACKAGE_BYTES
    if roots and name == SINGLE_FILES:
        files = [(file, root) for root in roots for file in _single_files(root)]
        return _module_sources(files, counts), MAX_PACKAGE_BYTES
    package = name.partition("/")[0]
    folder = _packages(roots).get(package)
    modules = _modules(folder) if folder else []
    slices = _slice_names(f"{kind}:{package}", len(modules))
    if folder is None or part not in slices:
        raise InputError(f"python-docs has no part '{part}' on this machine; `python_docs.parts()` lists those it has")
    number = slices.index(part)
    start, end = (len(modules) * index // len(slices) for index in (number, number + 1))
    files = [(file, folder.parent) for file in modules[start:end]]
    return _module_sources(files, counts), MAX_PACKAGE_BYTES // len(slices)


def _slice_names(name: str, num_files: int) -> list[str]:
    num_slices = -(-num_files // MAX_PART_FILES)
    if num_slices <= 1:
        return [name] * num_slices
    return [f"{name}/{number}-of-{num_slices}" for number in range(1, num_slices + 1)]


def _packages(roots: Iterable[Path]) -> dict[str, Path]:
    """Return package name -> folder. Of two with one name, the first would be imported."""
    packages: dict[str, Path] = {}
    for root in roots:
        for folder in sorted(root.iterdir()) if root.is_dir() else []:
            if folder.name.isidentifier() and not SKIPPED_FOLDER.fullmatch(folder.name) and folder.is_dir():
                packages.setdefault(folder.name, folder)
    packages.pop(OWN_PACKAGE, None)
    return packages


def _single_files(root: Path) -> list[Path]:
    return sorted(file for file in root.glob("*.py") if file.stem.isidentifier())


def _modules(folder: Path) -> list[Path]:
    paths = []
    for parent, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if not SKIPPED_FOLDER.fullmatch(name)]
        paths += [Path(parent, name) for name in files if name.endswith(".py")]
    return sorted(paths)


def _module_sources(files: list[tuple[Path, Path]], counts: Counts) -> Iterator[DocTexts]:
    """Yield modules ordered by a checksum, so that a limit keeps a uniform sample, not the first of the alphabet."""
    modules = ((".".join(file.relative_to(root).with_suffix("").parts), file) for file, root in files)
    for name, file in sorted(modules, key=lambda pair: (zlib.crc32(pair[0].encode()), pair)):
        yield name.removesuffix(".__init__"), _documentation_of(file, counts)


def _topics_file(paths: PythonPaths) -> Path:
    return paths.library / "pydoc_data" / "topics.py"


def _topics(file: Path, letters: str, counts: Counts) -> Iterator[DocTexts]:
    first, last = letters.split("-")
    for statement in _statements(file, counts):
        if isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Dict):
            for name, text in sorted(ast.literal_eval(statement.value).items()):
                if first <= name[0].lower() <= last:
                    yield f"topics.{name}", [text]


def _descriptions(roots: Iterable[Path]) -> Iterator[DocTexts]:
    metadata_by_name: dict[str, metadata.PackageMetadata] = {}
    for distribution in metadata.distributions(path=[str(root) for root in roots]):
        if distribution.read_text("METADATA"):  # missing if the distribution was removed incompletely
            metadata_by_name.setdefault(distribution.metadata["Name"], distribution.metadata)
    for name in sorted(metadata_by_name.keys() - {OWN_PACKAGE}):
        yield f"descriptions.{name}", [str(metadata_by_name[name].json.get("description") or "")]


# --- texts of a module -----------------------------------------------------------------------------------------------


def _statements(file: Path, counts: Counts) -> list[ast.stmt]:
    try:
        if file.stat().st_size > MAX_FILE_BYTES:
            counts["python-docs: files skipped, too large"] += 1
            return []
        with warnings.catch_warnings():  # such as those for invalid escape sequences
            warnings.simplefilter("ignore")
            return ast.parse(file.read_bytes()).body
    except (SyntaxError, ValueError, RecursionError, MemoryError, OSError):
        counts["python-docs: files skipped, cannot be parsed"] += 1
        return []


def _documentation_of(file: Path, counts: Counts) -> Iterator[str]:
    yield from _texts(_statements(file, counts))


def _texts(body: list[ast.stmt]) -> Iterator[str]:
    """Yield docstrings in order, and other strings that are documentation: `add_docstr(f, "...")`, `DOC = "..."`."""
    for statement in body:
        match statement:
            case ast.Expr(value=ast.Constant(value=str(text))):
                yield text
            case ast.Expr(value=ast.Call() as call):
                yield from _call_texts(call)
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Constant(value=str(text))) if "doc" in name.lower():
                yield text
            case ast.ClassDef() | ast.FunctionDef() | ast.AsyncFunctionDef():
                for decorator in statement.decorator_list:
                    yield from _call_texts(decorator)
                yield from _texts(statement.body)
            case ast.If() | ast.Try():
                yield from _texts(statement.body)
                yield from _texts(statement.orelse)


def _call_texts(call: ast.expr) -> Iterator[str]:
    if not isinstance(call, ast.Call) or "doc" not in ast.unparse(call.func).lower():
        return
    for argument in [*call.args, *(keyword.value for keyword in call.keywords)]:
        if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
            yield argument.value


# --- from documentation to prose -------------------------------------------------------------------------------------

_DIRECTIVE = re.compile(r"\.\. +(?:([\w:-]+)::)?\s*(.*)")
_PROSE_DIRECTIVE = re.compile(r"note|warning|tip|important|caution|attention|hint|seealso|admonition|topic")
_VERSION_DIRECTIVE = re.compile(r"version(added|changed|removed)|deprecated")
_RULE = re.compile(r"[=\-~^*+#\"'.`_:|\s]{3,}")
_TABLE_ROW = re.compile(r"\S {3,}\S|^\||\|$|^\+[-=]|\t\S")
_TYPE_FIELD = re.compile(r"[:@](?:type|rtype|vartype|ytype)\b[^:]*:")  # ":type x: int"
_TYPED_NAME = re.compile(r"[\w*`., ]+ : ")  # "x : int, optional", its description on the next lines
_FIELD = re.compile(r"[:@][a-z]+(?: [^:`]*)?:\s+(?=\S)")  # ":param x: words"
_BULLET = re.compile(r"(?:[-*+•]|\(?\d{1,2}[.)]|\(?[a-z]\))\s+(?=\S)")
_ARGUMENT = re.compile(
    r"`{0,2}\*{0,2}[\w.]+`{0,2}(?: or `?\w+`?)?(?: ?\([^()]*(?:\([^()]*\)[^()]*)*\))?(?::| --?)\s+(?=\S)"
)
_HAS_END = re.compile(r"[.!?][\"')]*(?:\s|$)")
MIN_WORDS, MIN_ITEM_WORDS = 6, 10  # of a paragraph; a short list item is often a label


def prose(text: str, counts: Counts) -> Iterator[str]:
    """Yield the paragraphs of one documentation text that are English prose, each on one line."""
    for number, block in enumerate(_blocks(_visible_lines(text))):
        paragraph = " ".join(block.lines)
        sentences = ""
        if _HAS_END.search(paragraph):
            allow_lowercase_start = number == 0 or block.is_item  # after its name or bullet was removed
            sentences = _sentences_of_prose(_strip_markup(paragraph), allow_lowercase_start)
        if sentences.count(" ") + 1 >= (MIN_ITEM_WORDS if block.is_item or block.indent else MIN_WORDS):
            yield sentences
        else:
            counts["python-docs: paragraphs dropped, not prose"] += 1


def _visible_lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield the lines that are not code with their indentation; an empty line ends a paragraph."""
    code_indent: int | None = None  # lines indented deeper than this are code
    is_fenced = is_session = False
    for raw in cleandoc(text).splitlines():
        line = raw.strip()
        depth = len(raw) - len(raw.lstrip())
        if line.startswith("```"):
            is_fenced = not is_fenced
        is_session = bool(line) and (is_session or line.startswith((">>>", "In [", "$ ")))
        if not line or is_fenced or is_session or line.startswith(("```", "#", "<")) or _RULE.fullmatch(line):
            yield 0, ""
            continue
        if code_indent is not None and depth > code_indent:
            continue
        code_indent = None
        directive = _DIRECTIVE.match(line)
        if directive or _TYPE_FIELD.match(line):
            yield 0, ""
            content = _directive_text(directive) if directive else None
            code_indent = depth if content is None else None
            if content:
                yield depth, f"- {content}"
            continue
        if _TABLE_ROW.search(line) or _TYPED_NAME.match(line):
            yield 0, ""
            continue
        if line.endswith("::"):
            code_indent = depth
        yield depth, line


def _directive_text(directive: re.Match[str]) -> str | None:
    """Return the text on the line of a directive whose body is prose; None if the body is dropped."""
    name, text = (directive[1] or "").lower(), directive[2]
    if _PROSE_DIRECTIVE.fullmatch(name):
        return text
    return "" if _VERSION_DIRECTIVE.fullmatch(name) else None


@dataclass(slots=True)
class _TextBlock:
    """Consecutive lines. An item starts with a bullet or the name of an argument, which is removed."""

    lines: list[str]
    indent: int
    is_item: bool


def _blocks(lines: Iterable[tuple[int, str]]) -> Iterator[_TextBlock]:
    """Group lines into blocks: one ends at an empty line, a different indentation or the next list item."""
    block: _TextBlock | None = None
    depth = 0  # of the last line of the block
    for indent, line in lines:
        mark = _BULLET.match(line) or _FIELD.match(line)
        # Inside running text "word: " is not an argument name: the line is merely wrapped there.
        if not mark and (not block or indent != depth or (block.is_item and indent == block.indent)):
            mark = _ARGUMENT.match(line)
        hangs = block and block.is_item and len(block.lines) == 1 and indent > block.indent
        if block and (mark or not line or (indent != depth and not hangs)):
            yield block
            block = None
        if line:
            block = block or _TextBlock([], indent, mark is not None)
            block.lines.append(line[mark.end() :] if mark else line)
        depth = indent
    if block:
        yield block


_MARKUP = re.compile(r"[`*\[<\\]|://|www")
_REPLACEMENTS = [
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r"!\[[^\]]*\]\([^)]*\)|\[!\[.*?\)\]\([^)]*\)", ""),  # pictures
        (r"(?::[\w+-]+)+:`[!~.]*([^`<]+?)\s*(?:<[^`>]*>)?`", r"\1"),  # :func:`open`, :ref:`this page <target>`
        (r"\[`{1,2}~?([^`\]]+)`{1,2}\](?:\([^)]*\))?", r"\1"),  # [`Model`]
        (r"\[([^\]\[]+)\](?:\([^)]*\)|\[[^\]]*\])", r"\1"),  # [words](address)
        (r"`([^`<]+?)\s*<[^`>]*>`_{1,2}", r"\1"),  # `words <address>`_
        (r"``([^`]+)``", r"\1"),
        (r"`([^`]+)`_{0,2}", r"\1"),
        (r"\s*\[[#\w.*]+\]_|\s*\[\^\w+\]", ""),  # footnotes
        (r"(?<!\w)\[([A-Za-z]\w+)\](?!\w)", r"\1"),
        (r"\*\*([^*]+)\*\*", r"\1"),
        (r"(?<![\w*])\*([^*\s](?:[^*]*[^*\s])?)\*(?![\w*])", r"\1"),
        (r"</?(?:a|b|br|code|div|em|h\d|i|img|kbd|p|span|strong|sub|sup|Tip)\b[^<>]*>", ""),
        (r"\s*\((?:see:? |cf\. )?(?:https?://|www\.)[^()\s]*\)", ""),
        (r"\\([ *`_|])", r"\1"),
    )
]


def _strip_markup(paragraph: str) -> str:
    """Remove the inline markup of reStructuredText and Markdown."""
    if _MARKUP.search(paragraph):
        for pattern, replacement in _REPLACEMENTS:
            paragraph = pattern.sub(replacement, paragraph)
    return " ".join(paragraph.split())


_SENTENCE_GAP = re.compile(r"(?:(?<=[.!?])|(?<=[.!?][\"')]))(?<!e\.g\.)(?<!i\.e\.)(?<!cf\.)\s+(?=[A-Z\"'(])")
_SENTENCE_END = re.compile(r".*[A-Za-z0-9\"')%][.!?][\"')]?")
_CODE = re.compile(
    r"://|www\.|==|->|=>|::|>>>|(?<!\w):\w|[{}\\|<>=$@`^~#\x00-\x1f\ud800-\udfff]|[\w\])]\((?!e?s?\))|\]\[|\.\.\.|\b(?:TODO|FIXME|XXX)\b"
)
_PLAIN_WORD = re.compile(r"[(\"']*(?:[A-Z]?[a-z]+|[AI])(?:[-'’/][A-Za-z]?[a-z]+)*[.,;:!?)\"']*")
_SMALL_START = re.compile(r"[a-z]+(?:[-'’][a-z]+)?[,:]?\s")  # a word, not an identifier
_LEGAL = re.compile(r"copyright|licen[sc]e|warrant|all rights reserved|redistribut", re.IGNORECASE)
_FUNCTION_WORD = re.compile(
    r"\b(?:an?|and|are|as|at|be|been|but|by|can|do|does|for|from|has|have|if|in|into|is|its?|may|must|no|not|of|on|or|"
    r"should|so|such|than|that|the|their|then|there|these|they|this|to|was|we|were|when|which|will|with|would|your?)\b",
    re.IGNORECASE,
)
MIN_PLAIN_RATIO = 0.75  # of the words of a sentence: lower-case letters, except for the first
MIN_FUNCTION_WORD_RATIO = 0.12  # of the words of a sentence
MIN_PROSE_RATIO = 0.5  # of the length of a paragraph; with less, the remaining sentences are incoherent


def _sentences_of_prose(paragraph: str, allow_lowercase_start: bool) -> str:
    """Return the English sentences of a paragraph; "" if they are less than MIN_PROSE_RATIO of it."""
    if allow_lowercase_start and _SMALL_START.match(paragraph):
        paragraph = paragraph[0].upper() + paragraph[1:]
    if not (allow_lowercase_start or paragraph[:1].isupper() or paragraph[:1] in ("'", '"', "(")) or _LEGAL.search(
        paragraph
    ):
        return ""
    sentences = " ".join(sentence for sentence in _SENTENCE_GAP.split(paragraph) if _is_prose(sentence))
    return sentences if len(sentences) >= MIN_PROSE_RATIO * len(paragraph) else ""


def _is_prose(sentence: str) -> bool:
    if not _SENTENCE_END.fullmatch(sentence) or _CODE.search(sentence) or sentence.count("(") != sentence.count(")"):
        return False
    words = sentence.split(" ")
    num_plain = sum(1 for word in words if _PLAIN_WORD.fullmatch(word))
    num_function_words = len(_FUNCTION_WORD.findall(sentence))
    return num_plain >= MIN_PLAIN_RATIO * len(words) and num_function_words >= MIN_FUNCTION_WORD_RATIO * len(words)

"""The built-in corpus: prose of generated packages worked out by hand; real packages yield English."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from bertworks.errors import InputError
from bertworks.text import python_docs
from bertworks.text.document import Counts, RawDocument
from bertworks.text.python_docs import PythonPaths, parts, prose, read

SUN = "The sun rises in the east and sets in the west."
MOON = "The moon is a good deal smaller than the sun."
RAIN = "There was a lot of rain in the valley this year."


@pytest.fixture
def paths(tmp_path: Path) -> PythonPaths:
    library, installed = tmp_path / "lib", tmp_path / "lib" / "site-packages"
    installed.mkdir(parents=True)
    return PythonPaths(library, (installed,))


def write(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")


def paragraphs(text: str) -> list[str]:
    return list(prose(text, Counts()))


def test_wrapped_lines_are_joined_and_empty_lines_separate_paragraphs() -> None:
    text = """The sun rises in the east
    and sets in the west.

    The moon is a good deal
    smaller than the sun.
    """
    assert paragraphs(text) == [SUN, MOON]


def test_code_is_dropped_in_every_form() -> None:
    text = f"""{SUN}

    >>> print("This is an example of the output of a session.")
    This is an example of the output of a session.

    This sentence stays where it is. It leads to code::

        This is a literal block and not a part of the text.

        Nor is this second part of the literal block one.

    .. code-block:: python

        This is the body of a directive that holds some code.

    ```python
    This is between the fences of a block of code in Markdown.
    ```

    The value of f(x, y) is what the caller of the thing gets.

    {MOON}
    """
    assert paragraphs(text) == [SUN, "This sentence stays where it is.", MOON]


def test_tables_headings_and_rules_are_dropped() -> None:
    text = f"""
    A heading of the text
    =====================
    {SUN}

    =======   ==========================================
    name      This is what stands in the row of a table.
    =======   ==========================================

    | This is a row of a table in Markdown. | And so is this. |

    # This is a heading in Markdown, even with a full stop.
    {MOON}
    """
    assert paragraphs(text) == [SUN, MOON]


def test_inline_markup_is_replaced_by_its_text() -> None:
    text = (
        "Use :func:`~os.path.join` with a ``str`` or a :class:`path <pathlib.Path>`, as it is *very* **well** "
        "described in `the manual <https://example.org>`_ and in [the guide](https://example.org/guide) [1]_."
    )
    assert paragraphs(text) == [
        "Use os.path.join with a str or a path, as it is very well described in the manual and in the guide."
    ]


def test_sentences_with_addresses_are_dropped() -> None:
    assert paragraphs(f"{SUN} See https://example.org/sun for more of it. {MOON}") == [f"{SUN} {MOON}"]


def test_paragraphs_that_are_mostly_code_are_dropped() -> None:
    assert paragraphs("It is so. Then set a = b and c = d in the first of the files to have the thing done.") == []


def test_numpy_parameters_keep_only_sentences() -> None:
    text = """
    Parameters
    ----------
    depth : int, optional
        How far down the tree the search may go before
        it gives up and returns.
    name : str
        The name.
    """
    assert paragraphs(text) == ["How far down the tree the search may go before it gives up and returns."]


def test_google_arguments_keep_only_sentences() -> None:
    text = """
    Args:
        depth (int, optional): how far down the tree the search may go
            before it gives up and returns.
        name (str): The name.
        width: The number of branches that are followed at every node of the tree.
    """
    assert paragraphs(text) == [
        "How far down the tree the search may go before it gives up and returns.",
        "The number of branches that are followed at every node of the tree.",
    ]


def test_fields_and_bullets_are_removed() -> None:
    text = """
    :param depth: How far down the tree the search may go
        before it gives up and returns.
    :type depth: This is the type of the depth and not a part of the text.
    :returns: The list.

    - The number of branches that are followed
      at every node of the tree.
    - Short one.
    """
    assert paragraphs(text) == [
        "How far down the tree the search may go before it gives up and returns.",
        "The number of branches that are followed at every node of the tree.",
    ]


def test_notes_are_kept_and_other_directives_dropped() -> None:
    text = """
    .. note:: The number of branches that are followed
        is the same at every node of the tree.

    .. versionchanged:: 3.2
        The number of branches that are followed at a node may now be one.

    .. image:: tree.png
        This is the text that stands in the place of the picture.
    """
    assert paragraphs(text) == [
        "The number of branches that are followed is the same at every node of the tree.",
        "The number of branches that are followed at a node may now be one.",
    ]


@pytest.mark.parametrize(
    "text",
    [
        "Return the value of the node without a full stop at the end",
        "It is short.",
        "Licensed under the terms of the Apache License, which you may find in the file.",
        "El sol sale por el este y luego se pone por el oeste.",
        "太阳从东方升起，在西方落下。",
        "FOO_BAR, FOO_BAZ and X1 are in A_B, C_D or E_F of G_H.",
        "The lone half of a pair \ud800 cannot be written to a file.",
    ],
)
def test_text_that_is_not_english_prose_is_dropped_and_counted(text: str) -> None:
    counts = Counts()
    assert list(prose(text, counts)) == []
    assert counts == {"python-docs: paragraphs dropped, not prose": 1}


def test_docstrings_of_module_class_and_function_are_read_in_order(paths: PythonPaths) -> None:
    module = f'''"""{SUN}"""
class A:
    """{MOON}"""
    def f(self):
        """{RAIN}"""
'''
    write(paths.packages[0] / "sky" / "bodies" / "large.py", module)
    assert list(read("package:sky", paths)) == [
        RawDocument(f"{SUN}\n{MOON}\n{RAIN}", "python-docs/sky.bodies.large", "paragraphs")
    ]


def test_strings_of_documenting_calls_and_variables_are_read(paths: PythonPaths) -> None:
    module = f"add_newdoc('sun', '{SUN}')\nMOON_DOC = '{MOON}'\nother('{RAIN}')\n"
    write(paths.packages[0] / "sky" / "__init__.py", module)
    assert list(read("package:sky", paths)) == [RawDocument(f"{SUN}\n{MOON}", "python-docs/sky", "paragraphs")]


def test_modules_are_not_imported(paths: PythonPaths) -> None:
    write(paths.packages[0] / "trap" / "__init__.py", f'"""{SUN}"""\nraise SystemExit("I was run")\n')
    assert [document.text for document in read("package:trap", paths)] == [SUN]
    assert "trap" not in sys.modules


def test_invalid_and_too_large_files_are_skipped_and_counted(paths: PythonPaths) -> None:
    sky = paths.packages[0] / "sky"
    write(sky / "broken.py", f'"""{SUN}"""\ndef (:\n')
    write(sky / "large.py", f'"""{SUN}"""\n' + "#" * python_docs.MAX_FILE_BYTES)
    write(sky / "valid.py", f'"""{MOON}"""\n')
    counts = Counts()
    assert [document.source for document in read("package:sky", paths, counts)] == ["python-docs/sky.valid"]
    assert counts["python-docs: files skipped, cannot be parsed"] == 1
    assert counts["python-docs: files skipped, too large"] == 1


def test_repeated_docstrings_of_a_part_are_kept_once(paths: PythonPaths) -> None:
    sky = paths.packages[0] / "sky"
    write(sky / "a.py", f'"""{SUN}"""\ndef f():\n    """{MOON}"""\n')
    write(sky / "b.py", f'"""{RAIN}\n\n{MOON}"""\ndef f():\n    """{MOON}"""\n')
    counts = Counts()
    lines = [line for document in read("package:sky", paths, counts) for line in document.text.split("\n")]
    assert sorted(lines) == sorted([SUN, MOON, RAIN])
    assert counts["python-docs: texts and paragraphs dropped, repeated"] == 2


def test_tests_and_vendored_projects_are_excluded(paths: PythonPaths) -> None:
    for folder in ("tests", "_vendor", "third_party"):
        write(paths.packages[0] / "sky" / folder / "thing.py", f'"""{SUN}"""\n')
    write(paths.packages[0] / "sky" / "__init__.py", "")
    assert list(read("package:sky", paths)) == []


def test_parts_are_sorted_names_of_topics_packages_files_and_descriptions(paths: PythonPaths) -> None:
    write(paths.library / "pydoc_data" / "topics.py", "topics = {}\n")
    write(paths.library / "alpha" / "__init__.py", "")
    write(paths.library / "beta.py", "")
    write(paths.library / "test" / "test_beta.py", "")
    write(paths.packages[0] / "sky" / "__init__.py", "")
    write(paths.packages[0] / "sky-1.0.dist-info" / "METADATA", "Metadata-Version: 2.1\nName: sky\n\nWords.\n")
    assert parts(paths) == [
        "package:long-descriptions",
        "package:sky",
        "stdlib:alpha",
        "stdlib:single-files",
        "topics:a-f",
        "topics:g-m",
        "topics:n-s",
        "topics:t-z",
    ]


def test_topics_are_selected_by_their_first_letter(paths: PythonPaths) -> None:
    write(paths.library / "pydoc_data" / "topics.py", f"topics = {{'with': '{MOON}', 'assert': '{SUN}'}}\n")
    assert [document.source for document in read("topics:a-f", paths)] == ["python-docs/topics.assert"]
    assert [document.text for document in read("topics:t-z", paths)] == [MOON]


def test_descriptions_are_read_except_our_own(paths: PythonPaths) -> None:
    for name in ("sky", "bertworks"):
        text = f"Metadata-Version: 2.1\nName: {name}\n\n# {name}\n\n{SUN}\n"
        write(paths.packages[0] / f"{name}-1.0.dist-info" / "METADATA", text)
    (paths.packages[0] / "gone-1.0.dist-info").mkdir()
    assert list(read("package:long-descriptions", paths)) == [
        RawDocument(SUN, "python-docs/descriptions.sky", "paragraphs")
    ]


def test_parts_of_a_large_package_share_the_limit(paths: PythonPaths, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(python_docs, "MAX_PART_FILES", 3)
    monkeypatch.setattr(python_docs, "MAX_PACKAGE_BYTES", 2 * len("The sun has 11 spots on it today."))
    for number in range(10, 15):
        write(paths.packages[0] / "sky" / f"m{number}.py", f'"""The sun has {number} spots on it today."""\n')
    assert parts(paths) == ["package:sky/1-of-2", "package:sky/2-of-2"]
    first, second = Counts(), Counts()
    assert len(list(read("package:sky/1-of-2", paths, first))) == 1
    assert len(list(read("package:sky/2-of-2", paths, second))) == 1
    # Five files are split into two and three; the limit allows one sentence per part.
    assert first["python-docs: modules skipped, limit of the package reached"] == 1
    assert second["python-docs: modules skipped, limit of the package reached"] == 2


def test_order_of_a_part_does_not_depend_on_the_folder(paths: PythonPaths, tmp_path: Path) -> None:
    other = PythonPaths(tmp_path / "other", (tmp_path / "other",))
    names = ["a", "b", "c", "d", "e", "f"]
    for name in names:
        write(paths.packages[0] / "sky" / f"{name}.py", f'"""The sun has spots, as {name * 9} is said to have seen."""')
    for name in reversed(names):
        write(other.library / "sky" / f"{name}.py", f'"""The sun has spots, as {name * 9} is said to have seen."""')
    documents = list(read("package:sky", paths))
    assert len(documents) == 6
    assert list(read("package:sky", other)) == documents


@pytest.mark.parametrize("part", ["package:nothing", "stdlib:", "topics:a-z", "nonsense", "package:sky/2-of-3"])
def test_unknown_part_is_an_error(paths: PythonPaths, part: str) -> None:
    write(paths.packages[0] / "sky" / "__init__.py", "")
    with pytest.raises(InputError, match="python-docs has no part '" + part):
        read(part, paths)


@pytest.mark.parametrize(
    ("part", "module"), [("stdlib:json", "json.decoder"), ("stdlib:asyncio", "asyncio.transports")]
)
def test_standard_library_yields_english_paragraphs(part: str, module: str) -> None:
    assert part in parts()
    documents = {document.source: document for document in read(part)}
    assert f"python-docs/{module}" in documents
    for document in documents.values():
        assert document.lines == "paragraphs"
        for line in document.text.split("\n"):
            assert len(line.split(" ")) >= python_docs.MIN_WORDS
            assert line == line.strip()
            assert line.rstrip("\"')")[-1] in ".!?\"')"
            assert ">>>" not in line
            assert "`" not in line

"""The built-in corpus: fake packages in a folder give the prose worked out by hand; the real ones give English."""

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
def places(tmp_path: Path) -> PythonPaths:
    library, installed = tmp_path / "lib", tmp_path / "lib" / "site-packages"
    installed.mkdir(parents=True)
    return PythonPaths(library, (installed,))


def write(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")


def paragraphs(text: str) -> list[str]:
    return list(prose(text, Counts()))


def test_wrapped_lines_are_joined_and_empty_lines_part_paragraphs() -> None:
    text = """The sun rises in the east
    and sets in the west.

    The moon is a good deal
    smaller than the sun.
    """
    assert paragraphs(text) == [SUN, MOON]


def test_code_is_dropped_in_every_form_it_takes() -> None:
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


def test_roles_literals_links_and_emphasis_become_their_words() -> None:
    text = (
        "Use :func:`~os.path.join` with a ``str`` or a :class:`path <pathlib.Path>`, as it is *very* **well** "
        "described in `the manual <https://example.org>`_ and in [the guide](https://example.org/guide) [1]_."
    )
    assert paragraphs(text) == [
        "Use os.path.join with a str or a path, as it is very well described in the manual and in the guide."
    ]


def test_sentences_with_addresses_are_cut_out_of_a_paragraph() -> None:
    assert paragraphs(f"{SUN} See https://example.org/sun for more of it. {MOON}") == [f"{SUN} {MOON}"]


def test_a_paragraph_that_is_mostly_code_is_dropped_as_a_whole() -> None:
    assert paragraphs("It is so. Then set a = b and c = d in the first of the files to have the thing done.") == []


def test_numpy_parameters_lose_their_signatures_and_keep_sentences() -> None:
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


def test_google_arguments_lose_their_names_and_keep_sentences() -> None:
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


def test_fields_and_bullets_lose_their_marks() -> None:
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


def test_notes_keep_their_words_and_other_directives_lose_them() -> None:
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
def test_what_is_not_an_english_sentence_is_dropped_and_counted(text: str) -> None:
    counts = Counts()
    assert list(prose(text, counts)) == []
    assert counts == {"python-docs: paragraphs dropped, not prose": 1}


def test_docstrings_of_module_class_and_function_are_read_in_order(places: PythonPaths) -> None:
    module = f'''"""{SUN}"""
class A:
    """{MOON}"""
    def f(self):
        """{RAIN}"""
'''
    write(places.packages[0] / "sky" / "bodies" / "large.py", module)
    assert list(read("package:sky", places)) == [
        RawDocument(f"{SUN}\n{MOON}\n{RAIN}", "python-docs/sky.bodies.large", "paragraphs")
    ]


def test_strings_handed_to_documenting_calls_and_names_are_read(places: PythonPaths) -> None:
    module = f"add_newdoc('sun', '{SUN}')\nMOON_DOC = '{MOON}'\nother('{RAIN}')\n"
    write(places.packages[0] / "sky" / "__init__.py", module)
    assert list(read("package:sky", places)) == [RawDocument(f"{SUN}\n{MOON}", "python-docs/sky", "paragraphs")]


def test_a_module_that_raises_when_imported_is_still_read(places: PythonPaths) -> None:
    write(places.packages[0] / "trap" / "__init__.py", f'"""{SUN}"""\nraise SystemExit("I was run")\n')
    assert [passage.text for passage in read("package:trap", places)] == [SUN]
    assert "trap" not in sys.modules


def test_files_that_cannot_be_parsed_or_are_too_large_are_skipped_and_counted(places: PythonPaths) -> None:
    sky = places.packages[0] / "sky"
    write(sky / "broken.py", f'"""{SUN}"""\ndef (:\n')
    write(sky / "large.py", f'"""{SUN}"""\n' + "#" * python_docs.MAX_FILE_BYTES)
    write(sky / "sound.py", f'"""{MOON}"""\n')
    counts = Counts()
    assert [passage.source for passage in read("package:sky", places, counts)] == ["python-docs/sky.sound"]
    assert counts["python-docs: files skipped, cannot be parsed"] == 1
    assert counts["python-docs: files skipped, too large"] == 1


def test_a_repeated_docstring_is_kept_once_in_a_part(places: PythonPaths) -> None:
    sky = places.packages[0] / "sky"
    write(sky / "a.py", f'"""{SUN}"""\ndef f():\n    """{MOON}"""\n')
    write(sky / "b.py", f'"""{RAIN}\n\n{MOON}"""\ndef f():\n    """{MOON}"""\n')
    counts = Counts()
    lines = [line for passage in read("package:sky", places, counts) for line in passage.text.split("\n")]
    assert sorted(lines) == sorted([SUN, MOON, RAIN])
    assert counts["python-docs: texts and paragraphs dropped, repeated"] == 2


def test_tests_and_copies_of_other_projects_are_left_out(places: PythonPaths) -> None:
    for folder in ("tests", "_vendor", "third_party"):
        write(places.packages[0] / "sky" / folder / "thing.py", f'"""{SUN}"""\n')
    write(places.packages[0] / "sky" / "__init__.py", "")
    assert list(read("package:sky", places)) == []


def test_parts_name_topics_packages_single_files_and_descriptions_in_order(places: PythonPaths) -> None:
    write(places.library / "pydoc_data" / "topics.py", "topics = {}\n")
    write(places.library / "alpha" / "__init__.py", "")
    write(places.library / "beta.py", "")
    write(places.library / "test" / "test_beta.py", "")
    write(places.packages[0] / "sky" / "__init__.py", "")
    write(places.packages[0] / "sky-1.0.dist-info" / "METADATA", "Metadata-Version: 2.1\nName: sky\n\nWords.\n")
    assert parts(places) == [
        "package:long-descriptions",
        "package:sky",
        "stdlib:alpha",
        "stdlib:single-files",
        "topics:a-f",
        "topics:g-m",
        "topics:n-s",
        "topics:t-z",
    ]


def test_topics_are_chosen_by_their_first_letter(places: PythonPaths) -> None:
    write(places.library / "pydoc_data" / "topics.py", f"topics = {{'with': '{MOON}', 'assert': '{SUN}'}}\n")
    assert [passage.source for passage in read("topics:a-f", places)] == ["python-docs/topics.assert"]
    assert [passage.text for passage in read("topics:t-z", places)] == [MOON]


def test_descriptions_of_distributions_are_read_but_not_our_own(places: PythonPaths) -> None:
    for name in ("sky", "bertworks"):
        text = f"Metadata-Version: 2.1\nName: {name}\n\n# {name}\n\n{SUN}\n"
        write(places.packages[0] / f"{name}-1.0.dist-info" / "METADATA", text)
    (places.packages[0] / "gone-1.0.dist-info").mkdir()
    assert list(read("package:long-descriptions", places)) == [
        RawDocument(SUN, "python-docs/descriptions.sky", "paragraphs")
    ]


def test_a_package_of_many_files_is_split_and_its_parts_share_the_limit(
    places: PythonPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(python_docs, "MAX_PART_FILES", 3)
    monkeypatch.setattr(python_docs, "MAX_PACKAGE_BYTES", 2 * len("The sun has 11 spots on it today."))
    for number in range(10, 15):
        write(places.packages[0] / "sky" / f"m{number}.py", f'"""The sun has {number} spots on it today."""\n')
    assert parts(places) == ["package:sky/1-of-2", "package:sky/2-of-2"]
    first, second = Counts(), Counts()
    assert len(list(read("package:sky/1-of-2", places, first))) == 1
    assert len(list(read("package:sky/2-of-2", places, second))) == 1
    # Five files are cut into two and three; each part may give one sentence.
    assert first["python-docs: modules skipped, limit of the package reached"] == 1
    assert second["python-docs: modules skipped, limit of the package reached"] == 2


def test_the_order_of_a_part_does_not_depend_on_the_folder(places: PythonPaths, tmp_path: Path) -> None:
    other = PythonPaths(tmp_path / "other", (tmp_path / "other",))
    names = ["a", "b", "c", "d", "e", "f"]
    for name in names:
        write(
            places.packages[0] / "sky" / f"{name}.py", f'"""The sun has spots, as {name * 9} is said to have seen."""'
        )
    for name in reversed(names):
        write(other.library / "sky" / f"{name}.py", f'"""The sun has spots, as {name * 9} is said to have seen."""')
    found = list(read("package:sky", places))
    assert len(found) == 6
    assert list(read("package:sky", other)) == found


@pytest.mark.parametrize("part", ["package:nothing", "stdlib:", "topics:a-z", "nonsense", "package:sky/2-of-3"])
def test_a_part_that_is_not_there_is_refused_by_name(places: PythonPaths, part: str) -> None:
    write(places.packages[0] / "sky" / "__init__.py", "")
    with pytest.raises(InputError, match="python-docs has no part '" + part):
        read(part, places)


@pytest.mark.parametrize(
    ("part", "module"), [("stdlib:json", "json.decoder"), ("stdlib:asyncio", "asyncio.transports")]
)
def test_real_parts_of_the_standard_library_give_english_paragraphs(part: str, module: str) -> None:
    assert part in parts()
    passages = {passage.source: passage for passage in read(part)}
    assert f"python-docs/{module}" in passages
    for passage in passages.values():
        assert passage.lines == "paragraphs"
        for line in passage.text.split("\n"):
            assert len(line.split(" ")) >= python_docs.MIN_WORDS
            assert line == line.strip()
            assert line.rstrip("\"')")[-1] in ".!?\"')"
            assert ">>>" not in line
            assert "`" not in line

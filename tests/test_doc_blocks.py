"""The code of the documentation: every block is executed, or says what it needs; recipes that are shown are valid."""

import json
import re
import shutil
import sys
import tomllib
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from doc_blocks import CODE, NEEDS, PAGE_NEEDS, ROOT, Block, blocks, pages, run_block, run_line, shorter

from bertworks.commands.compare.recipe import CompareRecipe
from bertworks.commands.finetune.recipe import FinetuneRecipe
from bertworks.commands.pretrain.recipe import PretrainRecipe
from bertworks.settings import from_table

RECIPES = {
    "docs/pretraining.md": PretrainRecipe,
    "docs/finetuning.md": FinetuneRecipe,
    "docs/family/README.md": CompareRecipe,
}
# Blocks of these pages are executed by tests of their own.
OWN_TESTS = {"README.md", "README.zh.md", "docs/five-minutes.md", "docs/five-minutes.zh.md"}
# These have Chinese examples; all other Chinese pages repeat the blocks of their originals, which are executed there.
WRITTEN_IN_CHINESE = {"docs/index.zh.md", "docs/install.zh.md", "docs/python.zh.md"} | OWN_TESTS
TRANSLATIONS = [page for page in pages() if page.endswith(".zh.md") and page not in WRITTEN_IN_CHINESE]
ALL = [block for page in pages() if page not in TRANSLATIONS for block in blocks(page) if block.language in CODE]
PAGES = sorted({block.page for block in ALL if not block.need} - OWN_TESTS)

FENCED = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)

SENTENCES = (
    "The king gave the man a stick. The queen gave the woman a book. The patient was given water and bread.",
    *(
        f"He sat by the {place} all {time} with a stick. The {thing} was {state} after the rain. "
        "The king met a man and a woman."
        for place in ("river", "mill", "house", "station", "market")
        for thing, time in (("water", "morning"), ("road", "day"), ("bread", "evening"))
        for state in ("high", "good")
    ),
    *(
        f"今天天气{state}，我们去{place}玩吧。每个星期六下午，我们都去{place}。天气{state}的时候也去。"
        for state in ("很好", "不好")
        for place in ("公园", "学校", "书店")
    ),
)
MAIL = ("A free prize waits for you", "See you at the mill on Saturday", "Win money now", "The bread was good")
SPAM = "text\tlabel\n" + "".join(f"{text}\t{('spam', 'ham')[index % 2]}\n" for index, text in enumerate(MAIL))


def test_every_block_of_code_is_executed_or_says_what_it_needs():
    assert [block.place for block in ALL if block.language == "console" and not block.need] == []
    assert [block.place for block in ALL if block.need and block.need not in NEEDS] == []


def test_a_need_stands_directly_before_its_block():
    texts = [(ROOT / page).read_text(encoding="utf-8") for page in pages()]
    num_comments = sum(len(re.findall(r"^<!-- needs: ", text, re.MULTILINE)) for text in texts)
    assert num_comments == sum(bool(block.need) for page in pages() if page not in PAGE_NEEDS for block in blocks(page))


@pytest.mark.parametrize("page", TRANSLATIONS)
def test_a_translation_has_the_headings_and_the_code_of_its_original(page):
    original = page.replace(".zh.md", ".md")
    assert [(block.code, block.need) for block in blocks(page)] == [(b.code, b.need) for b in blocks(original)]
    levels, original_levels = (
        re.findall(r"^(#+) ", FENCED.sub("", (ROOT / path).read_text(encoding="utf-8")), re.MULTILINE)
        for path in (page, original)
    )
    assert levels == original_levels


@pytest.mark.parametrize("page", RECIPES)
def test_recipes_that_are_shown_are_valid(page):
    (recipe,) = [block for block in blocks(page) if block.language == "toml"]
    from_table(RECIPES[page], tomllib.loads(recipe.code), recipe.place)


def test_a_block_of_a_page_knows_its_line_and_need(tmp_path, monkeypatch):
    (tmp_path / "page.md").write_text("# A\n\n<!-- needs: data -->\n```bash\nls\n```\n\n```python\n1\n```\n")
    monkeypatch.setattr("doc_blocks.ROOT", tmp_path)
    assert blocks("page.md") == [
        Block("page.md", 4, "bash", "ls\n", "data"),
        Block("page.md", 8, "python", "1\n", ""),
    ]


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with everything that the pages name: texts, labelled files, a corpus, tiny models."""
    folder = tmp_path_factory.mktemp("docs")
    for name in ("notes", "texts", "books", "papers", "messages"):
        (folder / name).mkdir()
        (folder / name / "a.txt").write_text("\n\n".join(SENTENCES) + "\n", encoding="utf-8")
    for name in ("train.tsv", "dev.tsv", "test.tsv"):
        (folder / name).write_text(SPAM)
    (folder / "pairs.tsv").write_text(
        "sentence1\tsentence2\tscore\n" + "".join(f"{text}\t{text}\t{len(text)}\n" for text in MAIL)
    )
    (folder / "sentences.txt").write_text("\n".join(MAIL) + "\n")
    (recipe,) = [block.code for block in blocks("docs/pretraining.md") if block.language == "toml"]
    (folder / "my.toml").write_text(recipe)
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.chdir(folder)
        run_line("bertworks vocab notes --size 400 --output vocab")
        run_line("bertworks prepare notes --vocab vocab --held-out-ratio 0.2 --output corpus")
        run_line(shorter("bertworks pretrain tiny --data corpus --output run"))
        run_line(shorter("bertworks finetune classify --model run/model --train train.tsv --output spam"))
    shutil.copytree(folder / "run" / "model", folder / "bert-base-uncased-folder")
    shutil.copytree(folder / "spam" / "model", folder / "MODEL")
    return folder


@pytest.mark.docs
@pytest.mark.parametrize("page", PAGES)
def test_the_blocks_of_a_page_run_in_order(page, prepared: Path, tmp_path: Path, monkeypatch, one_thread):
    shutil.copytree(prepared, tmp_path / "work")
    monkeypatch.chdir(tmp_path / "work")
    if page == "docs/family/transformer.md":
        for name in ("train.tsv", "dev.tsv", "test.tsv"):
            Path(name).write_text("".join(f"{text}\t{text.lower()}\n" for text in MAIL))
        Path("both-sides.txt").write_text(f"{SENTENCES[0]}\n\n{SENTENCES[1]}\n")
        Path("texts.txt").write_text("Win money now\n")
    namespace: dict[str, object] = {}
    for block in (block for block in blocks(page) if block.language in ("bash", "python") and not block.need):
        code = (
            block.code
            if block.language == "python"
            else "\n".join(map(shorter, block.code.replace("\\\n", " ").splitlines()))
        )
        run_block(replace(block, code=code), namespace)


@pytest.mark.docs
@pytest.mark.parametrize("page", ["docs/five-minutes.md", "docs/five-minutes.zh.md"])
def test_five_minutes_print_what_the_page_shows(page, tmp_path: Path, monkeypatch, one_thread):
    shutil.copytree(ROOT / "docs" / "tutorials" / "data", tmp_path / "work")
    monkeypatch.chdir(tmp_path / "work")
    namespace: dict[str, object] = {}
    for block in (block for block in blocks(page) if not block.need):
        assert run_block(block, namespace).splitlines() == re.findall(r"^# (.*)$", block.code, re.MULTILINE)


NOTEBOOKS = sorted((ROOT / "docs" / "tutorials").glob("*.ipynb"))


@pytest.mark.docs
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_the_cells_of_a_tutorial_print_what_it_shows(path: Path, tmp_path: Path, monkeypatch, one_thread):
    shutil.copytree(path.parent / "data", tmp_path / "data")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    namespace: dict[str, object] = {}
    for number, cell in enumerate(json.loads(path.read_text(encoding="utf-8"))["cells"]):
        if cell["cell_type"] == "code":
            block = Block(path.name, number, "python", "".join(cell["source"]), "")
            expected = "".join(text for output in cell["outputs"] for text in output["text"])
            printed = run_block(block, namespace)
            # Training on another machine ends in other digits: words and the number of lines are the same.
            assert re.sub(r"[\d.]+", "0", printed).split("\n")[0] == re.sub(r"[\d.]+", "0", expected).split("\n")[0]
            assert printed.count("\n") == expected.count("\n")


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_every_text_of_a_tutorial_has_a_chinese_one_with_the_same_links(path: Path):
    texts = [cell for cell in json.loads(path.read_text("utf-8"))["cells"] if cell["cell_type"] == "markdown"]
    for cell in texts:
        links, chinese_links = (re.findall(r"\]\((.*?)\)", text) for text in (_joined(cell), cell["metadata"]["zh"]))
        assert sorted(chinese_links) == sorted(links)


def _joined(cell: dict[str, list[str]]) -> str:
    return "".join(cell["source"])


def test_every_tutorial_has_its_outputs_and_no_path_of_a_machine():
    assert len(NOTEBOOKS) == 8
    for path in NOTEBOOKS:
        text = path.read_text(encoding="utf-8")
        assert '"output_type": "stream"' in text, f"{path.name} was not executed; run make tutorials"
        assert re.findall(r"/(?:tmp|home|root|work|Users)/", text) == []
        assert len(text) < 50_000


@pytest.mark.docs
def test_the_numbers_of_executed_and_of_marked_blocks_are_printed():
    needs = Counter(block.need for block in ALL)
    marked = ", ".join(f"{count} {need}" for need, count in sorted(needs.items()) if need)
    sys.stdout.write(f"{needs['']} blocks executed, {len(ALL) - needs['']} marked as needing something: {marked}\n")
    assert needs[""] > 30

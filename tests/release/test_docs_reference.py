"""The reference: everything public is documented, and the pages have what the package has."""

import dataclasses
import re

import pytest

import bertworks
import docs_reference
from bertworks.cli.app import COMMANDS


@pytest.fixture(scope="module")
def pages() -> dict[str, str]:
    return docs_reference.pages()


def test_everything_public_is_documented():
    assert docs_reference.undocumented() == []


def test_an_undocumented_key_is_named(monkeypatch):
    @dataclasses.dataclass
    class Recipe:
        """A recipe.

        seed   of everything
        """

        seed: int = 0
        steps: int = 1

    monkeypatch.setattr(docs_reference, "RECIPES", {"Cooking": Recipe})
    assert "Cooking recipe  steps" in docs_reference.undocumented()


def test_the_api_page_has_every_public_name(pages):
    headings = [line.strip() for line in pages["reference/api.md"].splitlines() if "heading: bertworks." in line]
    assert sorted(headings) == sorted(f"heading: bertworks.{name}" for name in bertworks.__all__)


def test_the_api_page_has_the_class_that_documents_the_parameters_of_estimators(pages):
    assert "\n::: bertworks.estimators.BertTaskEstimator\n" in pages["reference/api.md"].partition("## Base classes")[2]


def test_the_page_of_commands_has_commands_groups_and_options(pages):
    page = pages["reference/cli.md"]
    assert [name for name in COMMANDS if f"\n## bertworks {name}\n" not in page] == []
    assert "\n### bertworks word-vectors train\n" in page
    assert "bertworks fill-mask MODEL TEXT [OPTIONS]" in page
    assert "| `--top-k N` | Number of candidates. | `5` |" in page


def test_the_chinese_page_of_commands_has_the_chinese_help(pages):
    page, english = pages["reference/cli.zh.md"], pages["reference/cli.md"]
    assert "| `--top-k N` | 候选个数。 | `5` |" in page
    assert re.findall("^#+ bertworks .*", page, re.M) == re.findall("^#+ bertworks .*", english, re.M)
    meanings = re.findall(r"^\| `[^|]*` \| ([^|]*) \|", page, re.M)
    assert len(meanings) > 300
    assert [text for text in meanings if not re.search("[\u4e00-\u9fff]", text)] == ["king", "woman"]  # examples


def test_lines_that_help_keeps_are_lines_of_the_page(pages):
    assert "```text\nBuilt in:\n  family BERT, RoBERTa" in pages["reference/cli.md"]
    assert "\b" not in pages["reference/cli.md"]


def test_the_page_of_recipes_has_types_defaults_and_meanings(pages):
    page = pages["reference/recipes.md"]
    assert "| `mask_prob` | float | `0.15` | ratio of the tokens to predict |" in page
    assert "### Pretraining: `[[phases]]`" in page
    assert "| `half-hour` | A mini BERT in half an hour on two cores" in page


def test_the_page_of_http_has_endpoints_with_their_fields(pages):
    page = pages["reference/http.md"]
    assert "\n## POST /v1/models/{name}/predict\n" in page
    assert "\n## GET /health\n" in page
    assert "| `inputs` | " in page

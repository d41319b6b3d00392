"""The reliability page: records of several seeds are added up, others keep their rows, and none is invented."""

import json
import runpy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
PAGE = SimpleNamespace(**runpy.run_path(str(ROOT / "release" / "reliability.py")))
KILLED = "| killed (SIGKILL) at random moments, then run again: `vocab` |"


def record(**values: Any) -> dict[str, Any]:
    return {
        "name": "kill/vocab",
        "tries": 14,
        "planned": 14,
        "outcomes": {"same bytes": 14, "stuck": 0},
        "seed": 1,
        "date": "2026-01-02",
        "minutes": 1.25,
        "version": "1.0",
        "notes": [],
        **values,
    }


def row(records: list[dict[str, Any]], old_page: str = "") -> str:
    page = PAGE.render({"kill/vocab": records} if records else {}, f"before\n{PAGE.TABLE}\nafter\n", old_page)
    assert page.startswith("before\n| fault |")
    assert page.endswith("|\nafter\n")
    (line,) = [line for line in page.splitlines() if line.startswith(KILLED)]
    return line


def test_a_row_has_tries_outcomes_and_the_run():
    assert row([record()]) == f"{KILLED} 14 | 14 same bytes, 0 stuck | 1.0, 2026-01-02, seed 1, 1.2 min | – |"


def test_seeds_are_added_up():
    other = record(seed=2, outcomes={"same bytes": 3, "stuck": 1}, date="2026-01-03", minutes=2.0)
    assert row([record(), other]) == (
        f"{KILLED} 18 | 17 same bytes, 1 stuck | 1.0, 2026-01-03, seed 1, 2, 3.2 min | – |"
    )


def test_a_part_of_a_campaign_says_how_much_was_planned():
    assert " | 3 of 14 planned | 3 same bytes; on a busy machine | " in row(
        [record(outcomes={"same bytes": 3}, details="on a busy machine")]
    )


def test_a_campaign_without_a_record_keeps_its_row_or_says_that_it_was_not_run():
    old = f"{KILLED} 9 | 9 same bytes | 1.0, 2025-12-31, seed 3, 4.0 min | – |"
    assert row([], f"# Old\n{old}\n") == old
    assert row([]) == f"{KILLED} 0 | not run | – | – |"


def test_the_page_is_written_from_a_folder_of_records(tmp_path: Path):
    for seed in (1, 2):
        (tmp_path / f"a.{seed}.json").write_text(json.dumps(record(seed=seed)))
    PAGE.write_page(tmp_path, tmp_path / "page.md")
    assert f"{KILLED} 28 | 28 same bytes" in (tmp_path / "page.md").read_text()


@pytest.mark.parametrize("part", ["## What it stands for", "## What is not promised", "| fault | tries | outcome |"])
def test_the_page_of_the_docs_has_all_parts(part):
    assert part in (ROOT / "docs" / "reliability.md").read_text(encoding="utf-8")


def test_the_page_of_the_docs_is_the_template_with_a_table():
    page = (ROOT / "docs" / "reliability.md").read_text(encoding="utf-8")
    assert PAGE.render({}, PAGE.TEMPLATE.read_text(encoding="utf-8"), page) == page

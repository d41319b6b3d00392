"""The compatibility page: models that transformers and sentence-transformers build in, docs/compatibility.md out.

    python release/compatibility.py [--page docs/compatibility.md] [--only bert,roberta,…]

`make compatibility` runs it. Every cell is measured in this run. The status is 1 if one has failed; the page is written
all the same. With --only, which takes parts of names of rows, these rows are printed, and no page is written.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.metadata
import logging
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import transformers

import bertworks
import compatibility_models
import compatibility_sentences
import compatibility_tokenizers
from bertworks.encoders.families import ENCODERS
from compatibility_cells import Row, table

ROOT = Path(__file__).parents[1]
TEMPLATE = Path(__file__).with_suffix(".md")
PACKAGES = ("transformers", "sentence-transformers", "tokenizers", "torch", "onnxruntime", "openvino")


@dataclass(frozen=True, slots=True)
class Section:
    """A table of the page: its header, and for each of its rows what measures it in an empty folder."""

    header: Sequence[str]
    rows: Mapping[str, Callable[[Path], Row]]


def sections(folder: Path) -> dict[str, Section]:
    """Return the tables by their names in the template; `folder` is for what their rows share."""
    base = compatibility_sentences.write_base(folder)
    sentences: dict[str, Callable[[Path], Row]] = {
        name: lambda path, name=name: compatibility_sentences.measure_sentence_model(name, base, path)  # type: ignore[misc]
        for name in compatibility_sentences.SENTENCE_MODELS
    }
    sentences["`CrossEncoder`"] = lambda path: compatibility_sentences.measure_reranker(base, path)
    tokenizers: dict[str, Callable[[Path], Row]] = {
        name: lambda path, name=name: compatibility_tokenizers.measure_tokenizer_files(name, path)  # type: ignore[misc]
        for name in compatibility_tokenizers.TOKENIZER_FILES
    }
    tokenizers["`sentencepiece.bpe.model`, BPE"] = compatibility_tokenizers.measure_sentencepiece_bpe
    return {
        "models": Section(compatibility_models.HEADER, model_rows(compatibility_models.model_types())),
        "sentences": Section(compatibility_sentences.HEADER, sentences),
        "tokenizers": Section(compatibility_tokenizers.HEADER, tokenizers),
    }


def model_rows(model_types: Sequence[str]) -> dict[str, Callable[[Path], Row]]:
    """Return what measures the rows of these model types."""
    return {
        name: lambda path, name=name: compatibility_models.measure_model_type(name, path)  # type: ignore[misc]
        for name in model_types
    }


def measure_rows(section: Section, only: Sequence[str] = ()) -> Iterator[Row]:
    """Measure the rows of a table, or those whose names contain one of `only`."""
    for name, measure_row in section.rows.items():
        if not only or any(part in name for part in only):
            with tempfile.TemporaryDirectory() as folder:
                yield measure_row(Path(folder))


def render(template: str, tables: Mapping[str, str]) -> str:
    """Return the page: the template with these tables, and the run that made them."""
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in PACKAGES)
    parts = {
        "run": f"bertworks {bertworks.__version__}, {datetime.date.today()}, {time.process_time():.0f} s of processor "
        f"time; {versions}.",
        "others": ", ".join(f"`{name}`" for name in ENCODERS if name not in compatibility_models.model_types()),
        **tables,
    }
    for name, text in parts.items():
        template = template.replace(f"<!-- {name} -->", text)
    return template


def run(page: Path, only: Sequence[str] = ()) -> int:
    """Measure everything and write the page, or print the rows that `only` selects; return the number of failures."""
    start, num_failed, tables = time.monotonic(), 0, {}
    with tempfile.TemporaryDirectory() as folder:
        for name, section in sections(Path(folder)).items():
            rows = []
            for row in measure_rows(section, only):
                failed = [cell.text for cell in row.cells if cell.has_failed]
                num_failed += len(failed)
                rows.append(row)
                print(f"{row.name}: {'; '.join(dict.fromkeys(failed)) or 'passed'}", flush=True)
            tables[name] = table(section.header, rows)
    if only:
        print("\n\n".join(tables.values()))
    else:
        template = TEMPLATE.read_text(encoding="utf-8")
        page.write_text(render(template, tables), encoding="utf-8")
    print(f"{num_failed} cells failed, in {time.monotonic() - start:.0f} s")
    return num_failed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--page", type=Path, default=ROOT / "docs" / "compatibility.md")
    parser.add_argument(
        "--only", default="", help="print the rows with these parts in their names, separated by commas"
    )
    options = parser.parse_args()
    sys.exit(run(options.page, [part for part in options.only.split(",") if part]) > 0)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    transformers.utils.logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    main()

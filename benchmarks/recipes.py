"""What helps a small pretraining budget: corpora and labelled sets in, a table of recipe variants out.

    python benchmarks/recipes.py DATA_FOLDER --corpus en=FOLDER --corpus zh=FOLDER --output FOLDER
        [--only adam,muon] [--budget 20m] [--page docs/recipes.md]

Every variant is `bertworks pretrain half-hour` with some settings changed, for the same wall-clock time, and a
fine-tuning of its model with default settings on a small labelled set of the language. A variant that is finished is
not run again. The machine should be idle.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bertworks.disk import read_json, write_text
from bertworks.records import HeldOutRecord, read_records
from result_page import replace_between


@dataclass(frozen=True, slots=True)
class Variant:
    """Changes of the half-hour recipe, as options of `bertworks pretrain`, and why they may help."""

    title: str
    settings: tuple[str, ...] = ()

    @property
    def options(self) -> list[str]:
        return [word for setting in self.settings for word in ("--set", setting)]


# The same sequence lengths as the recipe's, with a changed value in each phase.
def _phases(first: str, second: str) -> str:
    return (
        f"phases=[{{max_length=32, budget_ratio=0.3, {first}}}, {{max_length=128, budget_ratio=0.35, {first}}}, "
        f"{{max_length=128, budget_ratio=0.35, {second}}}]"
    )


_MUON = ("optimizer.name=muon", "learning_rate=3e-3")
VARIANTS = {
    "adam": Variant("half-hour: Adam, learning rate 1e-3, beta2 0.98, no dropout, 32 then 128 tokens"),
    "paper": Variant(
        "as the paper's: learning rate 5e-4, beta2 0.999, dropout 0.1",
        ("learning_rate=5e-4", "optimizer.beta2=0.999", "model.hidden_dropout_prob=0.1"),
    ),
    "beta2": Variant("beta2 0.999", ("optimizer.beta2=0.999",)),
    "dropout": Variant("dropout 0.1", ("model.hidden_dropout_prob=0.1",)),
    "adam-2e-3": Variant("learning rate 2e-3", ("learning_rate=2e-3",)),
    "long": Variant("128 tokens only", ("phases=[{max_length=128, budget_ratio=1.0}]",)),
    "wsd": Variant("warmup, stable, decay", ("schedule=wsd",)),
    "muon": Variant("Muon, learning rate 3e-3", _MUON),
    "muon-mask": Variant("Muon, 30 % masked, falling to 15 %", (*_MUON, _phases("mask_prob=0.3", "mask_prob=0.15"))),
    "muon-wwm": Variant("Muon, whole-word masking", (*_MUON, "masking.whole_words=true")),
    "muon-batch": Variant("Muon, batch size 32, growing to 96", (*_MUON, _phases("batch_size=32", "batch_size=96"))),
    "muon-ema": Variant("Muon, averaged weights", (*_MUON, "ema_decay=0.999")),
    "muon-4x384": Variant("Muon, 4 layers of 384", (*_MUON, "model.hidden_size=384", "model.num_attention_heads=6")),
    "muon-6x384": Variant(
        "Muon, 6 layers of 384",
        (*_MUON, "model.hidden_size=384", "model.num_attention_heads=6", "model.num_hidden_layers=6"),
    ),
}
# language -> the published dataset, its folder and the number of training examples of the fine-tuning.
DOWNSTREAM = {"en": ("glue/SST-2", "glue/SST-2", 3_000), "zh": ("chnsenticorp", "chnsenticorp", 1_000)}


def run_variant(name: str, language: str, corpus: Path, options: argparse.Namespace) -> None:
    """Pretrain and fine-tune a variant, or continue."""
    folder = options.output / f"{name}-{language}"
    pretrain = ["pretrain", "half-hour", "--data", str(corpus), "--output", str(folder), "--budget", options.budget]
    _run([*pretrain, *VARIANTS[name].options])
    dataset, data, count = DOWNSTREAM[language]
    if not (folder / "finetuned" / "run.json").exists():
        finetune = ["finetune", dataset, "--data", str(options.data / data), "--model", str(folder / "model")]
        _run([*finetune, "--set", f"max_train_examples={count}", "--output", str(folder / "finetuned")])


def _run(arguments: Sequence[str]) -> None:
    subprocess.run([sys.executable, "-m", "bertworks", *arguments], check=True, stdout=sys.stderr)


def table_row(name: str, output: Path, languages: Sequence[str]) -> str | None:
    """Return the row of a variant, with a dash for what has not been run; None if nothing has."""
    cells = []
    for language in languages:
        folder = output / f"{name}-{language}"
        if not (folder / "finetuned" / "run.json").exists():
            cells += ["–"] * 4
            continue
        last = [record for record in read_records(folder) if isinstance(record, HeldOutRecord)][-1]
        scores = read_json(folder / "finetuned" / "run.json", "a finished run")["scores"]["dev"]
        nsp = "–" if last.pair_accuracy is None else f"{100 * last.pair_accuracy:.1f}"
        cells += [f"{last.loss:.3f}", nsp, f"{100 * scores['accuracy']:.1f}", f"{last.step:,}"]
    return None if set(cells) == {"–"} else f"| {VARIANTS[name].title} | {' | '.join(cells)} |"


def table_of(output: Path, languages: Sequence[str]) -> str:
    """Return the table of all variants that were run."""
    columns = [f"{language} {name}" for language in languages for name in ("MLM loss", "NSP", "dev", "steps")]
    rows = [row for name in VARIANTS if (row := table_row(name, output, languages)) is not None]
    return "\n".join([f"| | {' | '.join(columns)} |", "|---|" + "---|" * len(columns), *rows])


def parse_corpora(texts: Sequence[str]) -> Mapping[str, Path]:
    corpora = dict(text.split("=", 1) for text in texts)
    if not set(corpora) <= set(DOWNSTREAM):
        raise SystemExit(f"--corpus takes {' or '.join(f'{language}=FOLDER' for language in DOWNSTREAM)}")
    return {language: Path(folder).absolute() for language, folder in corpora.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--corpus", action="append", required=True, help="en=FOLDER or zh=FOLDER, prepared")
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--only", default="", help="names of variants, separated by commas")
    parser.add_argument("--budget", default="20m")
    parser.add_argument("--page", type=Path, help="the page whose table is replaced")
    options = parser.parse_args()
    corpora = parse_corpora(options.corpus)
    names = options.only.split(",") if options.only else list(VARIANTS)
    if unknown := [name for name in names if name not in VARIANTS]:
        raise SystemExit(f"there is no variant {', '.join(unknown)}; the variants are {', '.join(VARIANTS)}")
    for name in names:
        for language, corpus in corpora.items():
            run_variant(name, language, corpus, options)
    table = table_of(options.output, list(corpora))
    print(table)
    if options.page:
        write_text(options.page, replace_between(options.page.read_text(encoding="utf-8"), "variants", table))


if __name__ == "__main__":
    main()

"""Options that several commands share: one name, one meaning, one help text each."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bertworks.choices import DEVICES, ENGINES, PRECISIONS, TRACKERS
from bertworks.cli.command import choice
from bertworks.cli.completion import complete_model, complete_recipe

_SOURCES = typer.Argument(help="Files, folders, globs, '-' for standard input, or 'python-docs'.", metavar="SOURCE…")

# Raw text
Sources = Annotated[list[str], _SOURCES]
OptionalSources = Annotated[list[str] | None, _SOURCES]
Format = Annotated[str, typer.Option(help="Format of the sources: auto, or one by name.", metavar="NAME")]
Field = Annotated[str, typer.Option(help="Field or column with the text in JSON Lines, CSV, TSV and Parquet.")]
Lines = Annotated[str, typer.Option(help="What a line holds: auto, sentences, paragraphs or wrapped.", metavar="NAME")]
Workers = Annotated[int | None, typer.Option(min=1, help="Worker processes; all cores by default.")]
Ray = Annotated[
    str | None,
    typer.Option(
        metavar="ADDRESS", help="Run on a Ray cluster: auto, HOST:PORT, ray://HOST:PORT, or local to start one here."
    ),
]
RayCpus = Annotated[int, typer.Option(min=1, help="With --ray: CPUs per run.")]

# Labelled files
TextColumn = Annotated[str | None, typer.Option(help="Column of the text.", metavar="COLUMN")]
PairColumn = Annotated[str | None, typer.Option(help="Column of the second text of a pair.", metavar="COLUMN")]
LabelColumn = Annotated[str | None, typer.Option(help="Column of the label or of the translation.", metavar="COLUMN")]
TargetsSuffix = Annotated[
    str | None,
    typer.Option(help="Suffix of line-aligned translation files: zh for train.zh beside train.lzh.", metavar="SUFFIX"),
]

# Models
ModelArgument = Annotated[
    str,
    typer.Argument(
        help="A model folder, one of our models (en-small), or a name on the hub.", autocompletion=complete_model
    ),
]
FinetunedModel = Annotated[str, typer.Argument(help="A fine-tuned model: a folder, or a name on the hub.")]
Engine = Annotated[
    str | None, choice("engine", ENGINES, "Inference engine; by default the one the folder was exported for.")
]
TopK = Annotated[int, typer.Option("--top-k", min=1, help="Number of candidates.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one line of JSON.")]

# Training
CorpusFolder = Annotated[Path, typer.Option(help="A corpus folder written by `bertworks prepare`.")]
Vocabulary = Annotated[str | None, typer.Option(help="Which vocabulary of the corpus to use: its path or hash.")]
RecipeArgument = Annotated[
    str,
    typer.Argument(
        help="A recipe: a .toml file, or a name such as mini or paper-base.", autocompletion=complete_recipe
    ),
]
RunFolder = Annotated[Path, typer.Option(help="Run folder to create or continue.")]
Budget = Annotated[
    str, typer.Option(help="Train for this long, such as 30m or 2h, instead of the recipe's steps.", metavar="TIME")
]
LearningRate = Annotated[float | None, typer.Option(help="Peak learning rate.")]
BatchSize = Annotated[int | None, typer.Option(min=1, help="Examples per optimizer step.")]
MaxLength = Annotated[int | None, typer.Option(min=1, help="Maximum sequence length in tokens.")]
Epochs = Annotated[int | None, typer.Option(min=1, help="Passes over the training examples.")]
Seed = Annotated[int | None, typer.Option(help="Random seed of initialization, sampling and dropout.")]
Device = Annotated[str, choice("device", DEVICES, "Device to compute on.")]
Precision = Annotated[
    str | None,
    choice("precision", PRECISIONS, "Compute dtype; by default bf16 where the processor has it, else fp32."),
]
Track = Annotated[
    list[str] | None,
    choice("tracker", TRACKERS, "Experiment tracker that gets losses and scores; may be repeated."),
]
Shard = Annotated[bool, typer.Option("--shard", help="Under torchrun: shard the model over all processes (FSDP2).")]
Overrides = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="KEY=VALUE", help="Override any recipe key, such as optimizer.beta2=0.98; may be repeated."
    ),
]


def columns_of(**columns: str | None) -> dict[str, str]:
    """Return the columns that were named, by role."""
    return {role: column for role, column in columns.items() if column}

"""The recipe of a pretraining run: what a TOML file may say, and what it says when it is silent (the paper's)."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from bertworks.disk import write_text
from bertworks.encoders.families import family_of
from bertworks.encoders.stack import BertSizes
from bertworks.errors import FolderError, SettingsError
from bertworks.objectives.registry import check_learns
from bertworks.sampling.masking import MaskSettings
from bertworks.sampling.samplers import READS
from bertworks.training.devices import PRECISIONS
from bertworks.training.optimizer import AdamSettings, DepthSettings
from bertworks.training.schedule import FALLS

POSITION_STARTS = ("normal", "waves", "neighbours")
BIAS_STARTS = ("zero", "counts")
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


@dataclass(frozen=True, slots=True)
class ModelRecipe:
    """A family and a released size by name, or numbers of one's own; what is given beside a size changes it.

    family           bert, roberta, albert, openai-gpt, xlnet, elmo or awd-lstm; activation is a family's own unless it
                     is given
    Two ways to begin that spare a short run the first stretch of its way; both are off in the paper's recipes.
    position_start   "normal"; "waves": the learned positions begin as sines and cosines, so that a neighbour is found
                     the same way everywhere; "neighbours": besides, the first heads begin by looking at neighbours
    spelling         what an ELMo reads words by: characters (its usual), strokes, shuffled-strokes or words
    scoring          what an ELMo tells words by: adaptive (its usual), sampled or full softmax
    memory           how many pieces an XLNet remembers of the rows before, where rows go on (permuted-stream)
    bias_start       "zero", or "counts": the masked head begins with how frequent pieces are
    """

    size: str = "base"
    num_layers: int | None = None
    width: int | None = None
    num_heads: int | None = None
    inner: int | None = None
    positions: int = 512
    activation: str | None = None
    dropout: float = 0.1
    position_start: str = "normal"
    bias_start: str = "zero"
    family: str = "bert"
    spelling: str | None = None
    scoring: str | None = None
    memory: int | None = None

    def __post_init__(self) -> None:
        for name, known in (("position_start", POSITION_STARTS), ("bias_start", BIAS_STARTS)):
            if getattr(self, name) not in known:
                raise SettingsError(f"{name} is '{getattr(self, name)}'; choose one of: {', '.join(known)}")

    def sizes(self, vocabulary: int) -> BertSizes:
        released = family_of(self.family).released(self.size, vocabulary)
        width = self.width or released.width
        released = _own(released, {"spelling": self.spelling, "scoring": self.scoring, "memory": self.memory})
        return replace(
            released,
            width=width,
            num_layers=self.num_layers or released.num_layers,
            num_heads=self.num_heads or released.num_heads,
            inner=self.inner or (4 * width if self.width else released.inner),
            positions=self.positions,
            activation=self.activation or released.activation,
            dropout=self.dropout,
            attention_dropout=self.dropout,
        )


_OWNERS = {"spelling": "ELMo", "scoring": "ELMo", "memory": "XLNet"}


def _own(sizes: BertSizes, told: dict[str, Any]) -> BertSizes:
    """Return the sizes with what is told of an ELMo or an XLNet alone."""
    told = {name: value for name, value in told.items() if value is not None}
    for name in told.keys() - {part.name for part in fields(sizes)}:
        raise SettingsError(f"{name} is for {_OWNERS[name]}; leave it out for the family '{sizes.family}'")
    return replace(sizes, **told)


@dataclass(frozen=True, slots=True)
class PhaseRecipe:
    """A stretch of the run at one length. `share` of a time budget, or `steps` where steps are counted."""

    length: int
    steps: int = 0
    share: float = 0.0


@dataclass(frozen=True, slots=True)
class Recipe:
    """A pretraining run. `batch` counts examples of a step over all processes; micro_batch 0 means: as fits.

    The rate rises over `warmup` steps, or the share `warmup_rate` of a budget, and falls to zero as `schedule` says.
    `compile` has torch compile each layer, `recompute` has layers keep less and compute it again, `precision` is that
    of products; `depths` says how the rate depends on the depth of a layer, for a model that goes on learning.
    """

    model: ModelRecipe = field(default_factory=ModelRecipe)
    objective: str = "masked-next"
    masking: MaskSettings = field(default_factory=MaskSettings)
    num_fresh_epochs: int = 0
    optimizer: AdamSettings = field(default_factory=AdamSettings)
    batch: int = 256
    micro_batch: int = 0
    rate: float = 1e-4
    warmup: int = 10_000
    warmup_rate: float = 0.05
    schedule: str = "linear"
    phases: tuple[PhaseRecipe, ...] = (PhaseRecipe(128, 900_000, 0.9), PhaseRecipe(512, 100_000, 0.1))
    budget: str = ""
    seed: int = 0
    save_every: int = 1_000
    evaluate_every: int = 1_000
    evaluate_examples: int = 512
    compile: bool = False
    recompute: bool = False
    precision: str = "fp32"
    depths: DepthSettings = field(default_factory=DepthSettings)

    def __post_init__(self) -> None:
        self._check_choices()
        self._check_numbers()
        self._check_phases()
        seconds_of(self.budget)

    def _check_choices(self) -> None:
        self.model.sizes(vocabulary=1)  # refuses what there is not
        if self.objective not in READS:
            raise SettingsError(f"there is no objective '{self.objective}'; choose one of: {', '.join(READS)}")
        check_learns(self.model.family, self.objective)
        if self.depths.unfreeze_rate:
            raise SettingsError("depths.unfreeze_rate is for fine-tuning; say how many steps: depths.unfreeze_every")
        if self.schedule not in FALLS:
            raise SettingsError(f"there is no schedule '{self.schedule}'; choose one of: {', '.join(FALLS)}")
        if self.precision not in PRECISIONS:
            raise SettingsError(f"there is no precision '{self.precision}'; choose one of: {', '.join(PRECISIONS)}")

    def _check_numbers(self) -> None:
        for name in ("batch", "save_every", "evaluate_every", "evaluate_examples"):
            if getattr(self, name) < 1:
                raise SettingsError(f"{name} is {getattr(self, name)}; give at least 1")
        for name in ("micro_batch", "warmup", "num_fresh_epochs"):
            if getattr(self, name) < 0:
                raise SettingsError(f"{name} is {getattr(self, name)}; give 0 or more")
        if not 0 < self.rate < math.inf:
            raise SettingsError(f"rate is {self.rate}; give a number above 0, such as 1e-4")
        for name, share in (("warmup_rate", self.warmup_rate), ("model.dropout", self.model.dropout)):
            if not 0 <= share < 1:
                raise SettingsError(f"{name} is {share}; give a number from 0 to below 1")

    def _check_phases(self) -> None:
        if not self.phases:
            raise SettingsError("a recipe needs at least one phase; add [[phases]] with length and steps")
        lengths = [phase.length for phase in self.phases]
        if len(set(lengths)) < len(lengths):
            raise SettingsError("two phases have the same length; join them, since a phase is known by its length")
        for number, phase in enumerate(self.phases, 1):
            if phase.length > self.model.positions:
                raise SettingsError(
                    f"phase {number} has length {phase.length}, but the model has {self.model.positions} positions; "
                    f"raise model.positions or shorten the phase"
                )
            if not self.budget and phase.steps < 1:
                raise SettingsError(f"phase {number} needs steps (or the recipe a budget, such as budget = '30m')")
            if self.budget and phase.share <= 0:
                raise SettingsError(f"phase {number} needs a share of the budget, such as share = 0.9")
        num_steps = sum(phase.steps for phase in self.phases)
        if not self.budget and self.warmup >= num_steps:
            raise SettingsError(
                f"warmup takes {self.warmup:,} steps, but the run has only {num_steps:,}; shorten it or add steps"
            )


def seconds_of(told: str) -> float | None:
    """Return the seconds of "90s", "30m", "2h", "1h30m" or "4d"; None for nothing."""
    if not told:
        return None
    parts = re.findall(r"(\d+(?:\.\d+)?)([smhd])", told)
    seconds = sum(float(number) * _UNITS[unit] for number, unit in parts)
    if "".join(number + unit for number, unit in parts) != told or seconds == 0:
        raise SettingsError(f"'{told}' is no time; write it as 90s, 30m, 2h or 1h30m")
    return seconds


def recipe_path(name: str, kind: str = "") -> Path:
    """Return the file of a recipe: a path, or the name of one that comes with the package, in the folder of a kind."""
    path = Path(name)
    if path.suffix == ".toml" or path.is_file():  # a folder of that name may well be the run's
        return path
    shipped = Path(__file__).parents[2] / "recipes" / kind / f"{name}.toml"
    if shipped.exists():
        return shipped
    known = ", ".join(sorted(one.stem for one in shipped.parent.glob("*.toml")))
    raise SettingsError(f"there is no recipe '{name}'; name a .toml file or one of: {known}")


def write_down(folder: Path, text: str, free: Sequence[str]) -> None:
    """Write the recipe of a run into its folder, or check that the one there is the same.

    A folder with anything else in it is refused, but for names like those in `free`: what such a run leaves before it
    has written its recipe.
    """
    path = folder / "recipe.toml"
    if path.exists() and path.read_text(encoding="utf-8") != text:
        raise FolderError(
            f"{folder} holds a run of another recipe (see {path}); choose another folder with --out, or start with "
            f"that recipe to continue it"
        )
    if not path.exists() and _holds_something(folder, free):
        raise FolderError(f"{folder} already holds something else; choose an empty or new folder with --out")
    write_text(path, text)


def _holds_something(folder: Path, free: Sequence[str]) -> bool:
    if folder.is_file():
        return True
    return folder.exists() and any(not any(map(path.match, free)) for path in folder.iterdir())


def as_toml(recipe: Any) -> str:
    """Return a recipe, a frozen dataclass, written out in full, nothing left to defaults."""
    lines, tables, lists = [], [], []
    for key, value in asdict(recipe).items():
        if isinstance(value, dict):
            tables += ["", f"[{key}]", *(f"{k} = {_toml(v)}" for k, v in value.items() if v is not None)]
        elif isinstance(value, tuple | list):
            for one in value:
                lists += ["", f"[[{key}]]", *(f"{k} = {_toml(v)}" for k, v in one.items())]
        else:
            lines += [f"{key} = {_toml(value)}"] if value is not None else []
    return "\n".join([*lines, *tables, *lists]) + "\n"


def _toml(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    return repr(value)

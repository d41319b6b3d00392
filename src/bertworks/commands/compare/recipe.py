"""Comparison recipes: a TOML file in; members, tasks, seeds, a budget, and the recipe of each run out."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from bertworks.commands.finetune.recipe import FinetuneRecipe
from bertworks.commands.pretrain.recipe import PretrainRecipe
from bertworks.datasets.published import DATASETS
from bertworks.errors import SettingsError
from bertworks.settings import apply_overrides, from_table, merge_tables, parse_duration, recipe_path, recipe_table
from bertworks.vocabulary.training import VocabularySettings

BUILTIN_RECIPES = ("family", "ablations", "masking", "sizes", "convergence")
_FOLDER = "compare"  # of the built-in recipes
_MULTIPLIERS = {"": 1.0, "k": 1e3, "M": 1e6, "B": 1e9}
UNITS = ("steps", "tokens", "flops")


@dataclass(frozen=True, slots=True)
class Budget:
    """The budget of each pretraining run. `unit` is one of UNITS or "seconds"; "": that of the member's recipe."""

    amount: float = 0.0
    unit: str = ""


def parse_budget(text: str) -> Budget:
    """Parse "800 steps", "2M tokens", "5e12 flops" or a duration such as 30m; an empty text is no budget."""
    match = re.fullmatch(rf"(\d[\d_]*(?:\.\d+)?(?:e\d+)?) ?([kMB]?) ({'|'.join(UNITS)})", text)
    if match is None:
        seconds = parse_duration(text)
        return Budget() if seconds is None else Budget(seconds, "seconds")
    amount = float(match[1]) * _MULTIPLIERS[match[2]]
    if amount <= 0:
        raise SettingsError(f"the budget is {text}; it must be above 0")
    return Budget(amount, match[3])


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskRecipe:
    """A dataset on which every member is fine-tuned and scored.

    task       classify, regress, choose, tag or answer with your own files; or a published dataset such as glue/MRPC
    name       its name in the table; by default the dataset or the task
    train      labelled file to train on, unless the task is a published dataset
    dev        labelled file to score on
    columns    column names by role (text, pair, label), where they differ from the usual ones
    finetune   keys of the fine-tuning recipe for this task
    """

    task: str
    name: str = ""
    train: Path | None = None
    dev: Path | None = None
    columns: dict[str, str] = field(default_factory=dict)
    finetune: dict[str, Any] = field(default_factory=dict)

    @property
    def title(self) -> str:
        return self.name or self.task


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberRecipe:
    """A model that takes part.

    name          its name in the table
    recipe        a pretraining recipe: a .toml file, or the name of a built-in one
    base_member   instead of a recipe, the member whose pretrained model is used: only the fine-tuning differs
    vocabulary    one of the corpus, by its path or hash; if the comparison starts from texts, the kind to train
    pretrain      changes to its pretraining recipe
    finetune      keys of the fine-tuning recipe for this member
    """

    name: str
    recipe: str = ""
    base_member: str = ""
    vocabulary: str = ""
    pretrain: dict[str, Any] = field(default_factory=dict)
    finetune: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if bool(self.recipe) == bool(self.base_member):
            raise SettingsError(f"member '{self.name}' needs either a recipe or a base_member")
        if self.base_member and (self.pretrain or self.vocabulary):
            raise SettingsError(
                f"member '{self.name}' uses the model of '{self.base_member}'; set pretrain and vocabulary there, or "
                f"give it its own recipe"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class CompareRecipe:
    """Members that are pretrained on one corpus with one budget and scored on the same tasks.

    corpus              a prepared corpus
    corpus_vocabulary   one of the vocabularies of the corpus, if it has several: its path or hash
    texts               instead of a corpus, text sources: a vocabulary is trained and a corpus prepared from them first
    vocabulary          settings of the vocabulary that is trained on texts
    sets                the folder of the published datasets among the tasks
    budget              of each pretraining run: "800 steps", "2M tokens", "5e12 flops" or a duration; "": the recipe's
    seeds               each member is run once with each seed
    eval_ratios         parts of the budget after which a model is fine-tuned and scored: the points of a curve
    pretrain, finetune  keys of the recipes for all members and tasks; their own take precedence
    """

    members: tuple[MemberRecipe, ...]
    tasks: tuple[TaskRecipe, ...] = ()
    corpus: Path | None = None
    corpus_vocabulary: str = ""
    texts: tuple[str, ...] = ()
    vocabulary: VocabularySettings = field(default_factory=lambda: VocabularySettings(vocab_size=8_000))
    sets: Path | None = None
    budget: str = ""
    seeds: tuple[int, ...] = (0,)
    eval_ratios: tuple[float, ...] = (1.0,)
    pretrain: dict[str, Any] = field(default_factory=dict)
    finetune: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for kind, names in (
            ("members", [member.name for member in self.members]),
            ("tasks", [task.title for task in self.tasks]),
            ("seeds", [str(seed) for seed in self.seeds]),
        ):
            folders = [folder_name(name) for name in names]
            for name, folder in zip(names, folders, strict=True):
                if not folder or folders.count(folder) > 1:
                    raise SettingsError(f"{kind}: '{name}' is not a unique name; give each its own")
        if not self.members or not self.seeds:
            raise SettingsError("a comparison needs at least one member and one seed; add [[members]]")
        self._check_base_members()
        self._check_eval_ratios()

    def _check_base_members(self) -> None:
        names = {member.name for member in self.pretrained_members}
        for member in self.members:
            if member.base_member and member.base_member not in names:
                raise SettingsError(
                    f"member '{member.name}' has the base_member '{member.base_member}', which has no recipe; choose "
                    f"one of: {', '.join(sorted(names))}"
                )

    def _check_eval_ratios(self) -> None:
        budget = parse_budget(self.budget)
        if not self.eval_ratios or list(self.eval_ratios) != sorted(set(self.eval_ratios)):
            raise SettingsError("eval_ratios must increase, such as [0.25, 0.5, 1.0]")
        if not 0 < self.eval_ratios[0] <= self.eval_ratios[-1] <= 1:
            raise SettingsError("eval_ratios are parts of the budget: above 0, up to 1.0")
        if self.eval_ratios[0] < 1 and budget.unit == "seconds":
            raise SettingsError("eval_ratios below 1 need a budget in steps, tokens or flops, not a duration")

    @property
    def pretrained_members(self) -> list[MemberRecipe]:
        """The members that are pretrained: those without a base_member."""
        return [member for member in self.members if not member.base_member]

    def members_with_base(self, base_member: str) -> list[MemberRecipe]:
        """Return that member, and those that use its pretrained model."""
        return sorted(
            (member for member in self.members if base_member in (member.name, member.base_member)),
            key=lambda member: bool(member.base_member),
        )

    def pretrain_recipe(self, member: MemberRecipe, seed: int) -> PretrainRecipe:
        """Return the pretraining recipe of a member; its number of steps does not follow the budget yet."""
        table = recipe_table(recipe_path(member.recipe))
        for overrides in (self.pretrain, member.pretrain, {"seed": seed}):
            table = merge_tables(table, overrides)
        if self.budget:  # it determines the steps, and warmup_ratio the warmup
            table = {**table, "warmup_steps": 0}
            phases = table.get("phases")
            if isinstance(phases, list):  # anything else is refused below
                table["phases"] = [{"steps": 1, **phase} if isinstance(phase, dict) else phase for phase in phases]
        return from_table(PretrainRecipe, table, f"member '{member.name}', recipe {member.recipe}")

    def finetune_recipe(self, member: MemberRecipe, task: TaskRecipe, seed: int) -> FinetuneRecipe:
        """Return the fine-tuning recipe of a member on a task."""
        table: dict[str, Any] = {}
        for overrides in (self.finetune, task.finetune, member.finetune, {"seed": seed}):
            table = merge_tables(table, overrides)
        return from_table(FinetuneRecipe, table, f"member '{member.name}', task '{task.title}'")

    def with_overrides(
        self,
        task_names: Sequence[str],
        member_names: Sequence[str],
        assignments: Sequence[str],
    ) -> CompareRecipe:
        """Return the comparison with other tasks, only some of its members, and further settings for all runs.

        Assignments are such as "pretrain.batch_size=16" or "finetune.epochs=2".
        """
        settings = apply_overrides({"pretrain": {}, "finetune": {}}, assignments, _RunSettings)
        unknown = [name for name in member_names if name not in {member.name for member in self.members}]
        if unknown:
            all_names = ", ".join(member.name for member in self.members)
            raise SettingsError(f"there is no member '{unknown[0]}'; choose one of: {all_names}")
        names = {member.name for member in self.members if not member_names or member.name in member_names}
        names |= {member.base_member for member in self.members if member.name in names and member.base_member}
        tasks = {task.title: task for task in self.tasks}
        return replace(
            self,
            members=tuple(
                replace(member, pretrain=merge_tables(member.pretrain, settings["pretrain"]) if member.recipe else {})
                for member in self.members
                if member.name in names
            ),
            tasks=tuple(tasks.get(name, TaskRecipe(task=name)) for name in task_names) or self.tasks,
            finetune=merge_tables(self.finetune, settings["finetune"]),
        )

    def check(self) -> None:
        """Raise before anything runs if the corpus, the tasks or the settings of a member cannot work."""
        if (self.corpus is None) == (not self.texts):
            raise SettingsError("name the corpus folder with --data (or corpus = … or texts = […] in the recipe)")
        if not self.tasks:
            raise SettingsError("there is no task to score; name one with --task, or add [[tasks]] to the recipe")
        for task in self.tasks:
            has_files = task.train is not None and task.dev is not None
            if not has_files and (task.task not in DATASETS or self.sets is None):
                raise SettingsError(
                    f"task '{task.title}' needs train and dev files, or to be a published dataset "
                    f"({', '.join(DATASETS)}) whose folder is given with --sets"
                )
        for member in self.members:
            if member.recipe:
                self.pretrain_recipe(member, self.seeds[0])
            for task in self.tasks:
                self.finetune_recipe(member, task, self.seeds[0])

    def to_dict(self) -> dict[str, Any]:
        """Return the recipe as JSON values."""
        table: dict[str, Any] = asdict(self)
        return {name: _to_json_value(value) for name, value in table.items()}


@dataclass(frozen=True, slots=True)
class _RunSettings:
    """The keys that `with_overrides` accepts."""

    pretrain: PretrainRecipe
    finetune: FinetuneRecipe


def read_compare_recipe(name: str, overrides: Mapping[str, Any] | None = None) -> CompareRecipe:
    """Read a comparison recipe, a .toml file or the name of a built-in one; `overrides` replace its fields."""
    path = recipe_path(name, _FOLDER)
    recipe = from_table(CompareRecipe, recipe_table(path), str(path))
    return replace(recipe, **dict(overrides or {}))


def folder_name(name: str) -> str:
    """Return the name of a member or task as a valid folder name."""
    return re.sub(r"[^\w.+-]+", "-", name).strip("-.")


def _to_json_value(value: Any) -> Any:
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, dict):
        return {name: _to_json_value(item) for name, item in value.items()}
    return [_to_json_value(item) for item in value] if isinstance(value, list | tuple) else value

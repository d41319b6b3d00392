"""Tables of tensor names: our name of a tensor -> its names in a model folder, which are transformers'.

Where transformers has several tensors for one of ours, ours is theirs stacked along the first dimension.
"""

from __future__ import annotations

from collections.abc import Mapping

NameTable = Mapping[str, tuple[str, ...]]

# The end of a name whose matrix is stored as (inputs, outputs), while ours is (outputs, inputs).
_TRANSPOSED_MARK = "ᵀ"


def mark_transposed(name: str) -> str:
    """Mark the name of a tensor that is stored transposed."""
    return name + _TRANSPOSED_MARK


def is_transposed(name: str) -> bool:
    return name.endswith(_TRANSPOSED_MARK)


def strip_mark(name: str) -> str:
    """Return the name as it is written in a file."""
    return name.removesuffix(_TRANSPOSED_MARK)


def expand_weight_and_bias(modules: Mapping[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
    """Return the table of the weights and biases of these modules."""
    return {
        f"{ours}.{tensor}": tuple(f"{name}.{tensor}" for name in theirs)
        for ours, theirs in modules.items()
        for tensor in ("weight", "bias")
    }


def layer_names(ours: str, theirs: str, num_layers: int, modules: NameTable) -> dict[str, tuple[str, ...]]:
    """Return the table of a stack of equal layers; the two prefixes end before the index of a layer."""
    return {
        name: names
        for index in range(num_layers)
        for name, names in expand_weight_and_bias(
            {
                f"{ours}.{index}.{module}": tuple(f"{theirs}.{index}.{name}" for name in names)
                for module, names in modules.items()
            }
        ).items()
    }


def replace_prefix(table: NameTable, old: str, new: str) -> dict[str, tuple[str, ...]]:
    """Return the table of a family whose names in a folder begin with another prefix."""
    return {
        ours: tuple(new + name.removeprefix(old) if name.startswith(old) else name for name in theirs)
        for ours, theirs in table.items()
    }

"""Hardware by name and by peak FLOP/s: parsing, validation, and agreement with published results."""

import pytest

from bertworks.commands.plan.forecast import step_flops
from bertworks.commands.plan.hardware import HARDWARE, hardware_from_flops, parse_hardware
from bertworks.encoders.bert import BertConfig
from bertworks.errors import SettingsError


@pytest.mark.parametrize(
    ("text", "name", "num_devices"),
    [("8xA100", "A100", 8), ("8 x a100", "A100", 8), ("H100", "H100", 1), ("16×TPUv2", "TPUv2", 16)],
)
def test_name_is_parsed(text: str, name: str, num_devices: int):
    hardware = parse_hardware(text)
    assert (hardware.name, hardware.num_devices) == (name, num_devices)


@pytest.mark.parametrize("text", ["8xB9000", "", "x", "A100x8", "-1xA100"])
def test_unknown_hardware_lists_the_known_kinds(text: str):
    with pytest.raises(SettingsError, match="TPUv2, V100, A100, H100, T4, RTX3090, RTX4090") as caught:
        parse_hardware(text)
    assert "--flops" in str(caught.value)


def test_zero_devices_are_refused():
    with pytest.raises(SettingsError, match="at least 1"):
        parse_hardware("0xA100")


def test_time_is_flops_by_devices_peak_and_utilisation():
    # Two devices of 100 FLOP/s that reach a quarter of them do 50 FLOP/s.
    assert hardware_from_flops(100.0, 2, 0.25).seconds(5000.0) == 100.0


@pytest.mark.parametrize(
    ("flops", "devices", "utilisation", "message"),
    [(0.0, 1, 0.5, "312e12"), (-1e12, 1, 0.5, "312e12"), (1e12, 0, 0.5, "at least 1"), (1e12, 1, 1.5, "at most 1")],
)
def test_invalid_hardware_is_refused(flops: float, devices: int, utilisation: float, message: str):
    with pytest.raises(SettingsError, match=message):
        hardware_from_flops(flops, devices, utilisation)


def test_every_kind_has_a_source_of_its_utilisation():
    assert all(hardware.source and hardware.memory for hardware in HARDWARE.values())


def test_paper_runs_take_about_four_days():
    for size, chips in (("base", 16), ("large", 64)):
        config = BertConfig.from_preset(size, 30_522)
        flops = 900_000 * step_flops(config, 256, 128) + 100_000 * step_flops(config, 256, 512)
        assert parse_hardware(f"{chips}xTPUv2").seconds(flops) / 86_400 == pytest.approx(4.0, rel=0.1)


@pytest.mark.parametrize(
    ("text", "sequences_128", "sequences_512"), [("8xV100", 1305.6, 231.68), ("8xA100", 3231.0, 620.0)]
)
def test_utilisation_lies_between_the_published_ones_of_short_and_long_sequences(
    text: str, sequences_128: float, sequences_512: float
):
    large, hardware = BertConfig.from_preset("large", 30_522), parse_hardware(text)
    peak = hardware.num_devices * hardware.peak_flops
    short = sequences_128 * step_flops(large, 1, 128) / peak
    long = sequences_512 * step_flops(large, 1, 512) / peak
    assert long < hardware.utilisation < short

"""Certificates: an exceeded tolerance is reported with its value and its option."""

from dataclasses import replace

import numpy as np
import pytest

from bertworks.errors import FolderError
from bertworks.exporters.certificate import Certificate, MetricChange, Tolerance
from bertworks.exporters.parity import MlmParity, ParityResult
from bertworks.tasks.contract import TaskScores


def certificate(tolerance: Tolerance, change: MetricChange | None = None, logits: float = 2e-3) -> Certificate:
    differences = {"last_hidden_state": 5e-5, "logits": logits}
    max_values = {"last_hidden_state": 3.0, "logits": 20.0}
    return Certificate(
        target="int8",
        sample_description="two texts",
        parity=ParityResult(differences, max_values, np.array([0.999, 0.991])),
        tolerance=tolerance,
        scheme={"precision": "int8"},
        metric_change=change,
    )


def test_an_export_within_the_tolerance_passes():
    certificate(Tolerance(1e-4, 0.995)).check("the model")


def test_large_logits_are_compared_relative_to_the_largest():
    """The largest logit is 20, so 20 times 1e-4 is allowed."""
    assert certificate(Tolerance(1e-4), logits=1.9e-3).failures == []
    assert certificate(Tolerance(1e-4), logits=2.1e-3).failures == [
        "logits differs by 0.0021, and 0.002 is allowed (--tolerance)"
    ]


def test_other_outputs_are_compared_absolutely():
    assert certificate(Tolerance(4e-5)).failures[0].startswith("last_hidden_state differs by 5e-05, and 4e-05")


def test_a_nonfinite_difference_always_fails():
    assert len(certificate(Tolerance(1e9), logits=float("inf")).failures) == 1
    assert len(certificate(Tolerance(1e9), logits=float("nan")).failures) == 1


def test_the_content_has_the_mlm_losses_before_and_after():
    parity = ParityResult({}, {}, np.array([1.0]), MlmParity(20, 4.5, 4.51, 0.95))
    content = replace(certificate(Tolerance()), parity=parity).to_dict()
    assert content["mlm"] == {"num_masked": 20, "loss_before": 4.5, "loss_after": 4.51, "same_ratio": 0.95}
    assert certificate(Tolerance()).to_dict()["mlm"] is None


def test_the_mean_cosine_is_checked():
    assert certificate(Tolerance(cosine=0.995)).failures == []
    assert certificate(Tolerance(cosine=0.996)).failures == [
        "the mean cosine is 0.9950, and 0.996 is required (--cosine)"
    ]


@pytest.mark.parametrize(("after", "passes"), [(0.91, True), (0.89, True), (0.88, False)])
def test_a_metric_may_fall_by_the_allowed_points(after: float, passes: bool):
    scores = (TaskScores(metrics={"f1": value, "accuracy": 0.5}, main_metric="f1") for value in (0.9, after))
    failures = certificate(Tolerance(points=1.001), MetricChange("dev.tsv", *scores)).failures
    assert failures == ([] if passes else ["f1 falls from 0.9000 to 0.8800, and 1.001 points are allowed (--points)"])


def test_a_refusal_names_model_texts_values_and_the_remedy():
    with pytest.raises(FolderError) as caught:
        certificate(Tolerance(cosine=0.999)).check("runs/mine")
    assert str(caught.value) == (
        "the export of runs/mine to int8 is refused, and nothing is written: on two texts the mean cosine is 0.9950, "
        "and 0.999 is required (--cosine); raise the tolerance with these options, or choose another target"
    )


def test_explicit_tolerances_replace_the_defaults():
    default = Tolerance(1e-4, None, 1.0)
    assert default.with_overrides(None, 0.9, None) == Tolerance(1e-4, 0.9, 1.0)
    assert default.with_overrides(1e-3, None, 0.0) == Tolerance(1e-3, None, 0.0)

"""Certificates: what is beyond a tolerance is said with its figures and the option that allows it."""

import numpy as np
import pytest

from bertworks.errors import FolderError
from bertworks.exporters.certificate import Certificate, MetricChange, Tolerance
from bertworks.exporters.parity import ParityResult
from bertworks.tasks.contract import TaskScores


def certificate(tolerance: Tolerance, change: MetricChange | None = None, logits: float = 2e-3) -> Certificate:
    differences = {"last_hidden_state": 5e-5, "logits": logits}
    sizes = {"last_hidden_state": 3.0, "logits": 20.0}
    compared = ParityResult(differences, sizes, np.array([0.999, 0.991]))
    return Certificate("int8", "two texts", compared, tolerance, {"precision": "int8"}, change)


def test_what_is_within_the_tolerance_passes():
    certificate(Tolerance(1e-4, 0.995)).check("the model")


def test_large_logits_are_compared_relative_to_the_largest():
    """The largest logit is 20, so 20 times 1e-4 is allowed."""
    assert certificate(Tolerance(1e-4), logits=1.9e-3).failures == []
    assert certificate(Tolerance(1e-4), logits=2.1e-3).failures == [
        "logits differs by 0.0021, and 0.002 is allowed (--tolerance)"
    ]


def test_other_outputs_are_compared_as_they_are():
    assert certificate(Tolerance(4e-5)).failures[0].startswith("last_hidden_state differs by 5e-05, and 4e-05")


def test_a_difference_that_is_no_number_is_never_within():
    assert len(certificate(Tolerance(1e9), logits=float("inf")).failures) == 1
    assert len(certificate(Tolerance(1e9), logits=float("nan")).failures) == 1


def test_the_mean_cosine_counts():
    assert certificate(Tolerance(cosine=0.995)).failures == []
    assert certificate(Tolerance(cosine=0.996)).failures == [
        "the mean cosine is 0.9950, and 0.996 is asked for (--cosine)"
    ]


@pytest.mark.parametrize(("after", "passes"), [(0.91, True), (0.89, True), (0.88, False)])
def test_a_metric_may_fall_by_so_many_hundredths(after: float, passes: bool):
    scores = (TaskScores(metrics={"f1": value, "accuracy": 0.5}, main_metric="f1") for value in (0.9, after))
    found = certificate(Tolerance(points=1.001), MetricChange("dev.tsv", *scores)).failures
    assert found == ([] if passes else ["f1 falls from 0.9000 to 0.8800, and 1.001 points are allowed (--points)"])


def test_a_refusal_names_model_texts_figures_and_the_way_out():
    with pytest.raises(FolderError) as caught:
        certificate(Tolerance(cosine=0.999)).check("runs/mine")
    assert str(caught.value) == (
        "the export of runs/mine to int8 is refused, and nothing is written: on two texts the mean cosine is 0.9950, "
        "and 0.999 is asked for (--cosine); allow more with these options, or export to another kind"
    )


def test_what_a_person_asks_for_goes_before_the_usual():
    usual = Tolerance(1e-4, None, 1.0)
    assert usual.with_overrides(None, 0.9, None) == Tolerance(1e-4, 0.9, 1.0)
    assert usual.with_overrides(1e-3, None, 0.0) == Tolerance(1e-3, None, 0.0)

# SPDX-License-Identifier: Apache-2.0
import pytest
from prometheus_client import REGISTRY

from kvstrata.kvcr import ConfigError
from kvstrata.kvcr.extension import ENABLEMENT
from kvstrata.kvcr_tuning.stages import StageMetrics, histogram
from kvstrata_host.kvcr.replica import PAGES

from .stores import replica
from .ways import ways_of

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]


def test_every_stage_of_a_backup_and_a_restore_is_observed() -> None:
    seen: list[tuple[str, float]] = []
    options = {"copy_restores": True, "verify_bytes": True}
    with replica(options) as made:
        inner = made.store.ways
        while inner.inner is not ENABLEMENT:  # type: ignore[attr-defined]
            inner = inner.inner  # type: ignore[attr-defined]
        inner.inner = StageMetrics(ENABLEMENT, lambda *each: seen.append(each))  # type: ignore[attr-defined]
        made.back_up(range(PAGES))
        backup = [name for name, _ in seen]
        seen.clear()
        made.restore(range(PAGES))
    assert backup == ["plan", "checksum", "deposit"]
    assert [name for name, _ in seen] == ["plan", "locate", "copy", "checksum", "restore"]
    assert all(seconds > 0 for _, seconds in seen)


def test_a_stage_that_fails_is_observed_and_its_error_is_kept() -> None:
    seen: list[str] = []
    ways = StageMetrics(ENABLEMENT, lambda name, seconds: seen.append(name))
    with pytest.raises(RuntimeError, match="injected"), ways.stage("copy"):
        raise RuntimeError("injected")
    assert seen == ["copy"]


def test_stages_are_counted_apart() -> None:
    labels = {"tp_rank": "stages"}
    observe = histogram(labels)
    observe("copy", 0.004)
    observe("copy", 0.006)
    observe("locate", 0.00002)
    assert REGISTRY.get_sample_value("kvcr_stage_seconds_sum", {**labels, "stage": "copy"}) == (
        pytest.approx(0.01)
    )
    assert (
        REGISTRY.get_sample_value(
            "kvcr_stage_seconds_bucket", {**labels, "stage": "locate", "le": "2.5e-05"}
        )
        == 1
    )


def test_stages_cannot_be_measured_while_sglangs_metrics_are_off() -> None:
    with pytest.raises(ConfigError, match="--enable-metrics"):
        ways_of({"stage_metrics": True})

# SPDX-License-Identifier: Apache-2.0
import csv
import json
from pathlib import Path

import pytest
from stores import plots, report
from stores.family import Family, families
from stores.grid import HEADLINE, MANY, MOST_BYTES, Point, by_size, full, quick
from stores.limits import limits, missed_goals
from stores.measure import Plan, Run
from stores.samples import Operation, Results, Series, State, quantile

POINT = Point(4096, 3)
PLAN = Plan((POINT,), seconds=0.0, starts=1)
SLOW = pytest.mark.timeout(240)


def series(
    contender: str,
    milliseconds: float,
    *,
    point: Point = HEADLINE,
    operation: Operation = "get",
    state: State = "warm",
) -> Series:
    return Series(contender, point, operation, state, (milliseconds / 1000,) * 3)


def results(*found: Series, damaged: tuple[str, ...] = ()) -> Results:
    return Results(found, {}, damaged, {"mooncake local": "not installed"}, (), {"cores": "2"})


def run(tmp_path: Path, *entered: Family, plan: Plan = PLAN) -> Results:
    told: list[str] = []
    return Run(plan, tmp_path / "logs", told.append).of(entered, {})


def test_a_quantile_is_a_value_that_was_seen() -> None:
    hundred = [float(value) for value in range(1, 101)]
    assert quantile(hundred, 0.50) == 50.0
    assert quantile(hundred, 0.99) == 99.0
    assert quantile([3.0, 1.0, 2.0], 0.50) == 2.0
    assert quantile([3.0, 1.0, 2.0], 0.99) == 3.0
    with pytest.raises(ValueError, match="no values"):
        quantile([], 0.5)


def test_speed_is_all_bytes_of_a_call_over_its_median_and_a_query_has_none() -> None:
    moved = Series("kvcr local", HEADLINE, "get", "warm", (0.02, 0.01, 5.0))
    assert moved.gigabytes_per_second == pytest.approx(64 * 512 * 1024 / 0.02 / 1e9)
    assert moved.p99_seconds == 5.0
    assert series("kvcr local", 1.0, operation="exists").gigabytes_per_second is None


def test_the_grid_goes_from_small_pages_to_large_ones_and_from_one_page_to_many() -> None:
    points = full()
    assert {point.page_bytes for point in points} >= {4 << 10, 512 << 10, 4 << 20}
    assert {point.pages for point in points} >= {1, 64, 1024}
    assert max(point.total_bytes for point in points) == MOST_BYTES
    assert {HEADLINE, MANY} <= set(points)
    assert set(quick()) == {HEADLINE, MANY}


def test_a_pool_is_made_for_the_first_point_of_a_size_so_that_has_the_most_pages() -> None:
    for points in by_size(full()).values():
        assert points[0].pages == max(point.pages for point in points)


def test_a_limit_is_a_ratio_of_medians_and_is_met_or_missed() -> None:
    found = results(
        series("kvcr local", 10.0), series("memcpy local", 8.0), series("mooncake local", 9.0)
    )
    by_goal = {limit.goal: limit for limit in limits(found, "kvcr")}
    assert by_goal["local restore"].seen == pytest.approx(0.8)
    assert by_goal["local restore"].verdict == "met"
    assert by_goal["local restore ahead of mooncake"].verdict == "missed"
    assert by_goal["local restore ahead of file"].verdict == "not measured"
    missed = missed_goals(limits(found, "kvcr"))
    assert "local restore" not in missed
    assert {"local restore ahead of mooncake", "local restore ahead of file"} <= set(missed)


def test_one_limit_of_several_with_the_same_goal_is_enough() -> None:
    backups = [
        series("kvcr local", 10.0, operation="set"),
        series("memcpy local", 5.0, operation="set"),
    ]
    goal = "backup of warm pages"
    assert goal in missed_goals(limits(results(*backups), "kvcr"))
    raw = series("raw kvcr local", 9.5, operation="set")
    assert goal not in missed_goals(limits(results(*backups, raw), "kvcr"))


@pytest.mark.parametrize(("cold", "exists", "met"), [(14.0, 0.9, True), (16.0, 1.1, False)])
def test_a_ceiling_is_met_from_below(cold: float, exists: float, met: bool) -> None:
    found = results(
        series("kvcr local", 10.0, operation="set"),
        series("kvcr local", cold, operation="set", state="cold"),
        series("kvcr local", exists, operation="exists", point=MANY),
    )
    ceilings = [limit for limit in limits(found, "kvcr") if limit.is_ceiling]
    assert [limit.met for limit in ceilings] == [met, met]


def test_everything_that_was_measured_is_written_and_whoever_is_missing_is_named(
    tmp_path: Path,
) -> None:
    found = results(series("kvcr local", 16.0), series("memcpy local", 8.0, operation="set"))
    report.write_csv(tmp_path / "stores.csv", found)
    with (tmp_path / "stores.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["contender"] for row in rows] == ["kvcr local", "memcpy local"]
    assert float(rows[0]["gigabytes_per_second"]) == pytest.approx(64 * 512 * 1024 / 16e6)
    report.write_json(tmp_path / "stores.json", found, ["kvcr"])
    document = json.loads((tmp_path / "stores.json").read_text(encoding="utf-8"))
    assert document["series"][0]["seconds"] == [0.016] * 3
    assert document["not_run"] == {"mooncake local": "not installed"}
    assert {each["verdict"] for each in document["limits"]["kvcr"]} == {"not measured"}
    page = report.markdown(found, ["kvcr"])
    assert "| kvcr local |  |  |  |  | 2.1 | 16 | 16 |  | 3 |" in page
    assert "- mooncake local: not installed" in page


def test_the_plots_show_who_was_measured_and_nobody_else() -> None:
    found = results(
        series("kvcr local", 16.0),
        series("memcpy local", 8.0),
        series("kvcr local", 1.0, operation="exists"),
    )
    for drawing in (plots.speeds(found), plots.latencies(found)):
        assert "<svg" in drawing
        assert "kvcr local" in drawing
        assert "mooncake" not in drawing.partition("</style>")[2]


@SLOW
@pytest.mark.integration
def test_every_contender_moves_all_bytes_or_says_why_it_does_not_run(tmp_path: Path) -> None:
    known = families(tmp_path, None)
    found = run(tmp_path, *known)
    assert found.damaged == ()
    assert found.failed == ()
    names = {family.contender(place) for family in known for place in family.places}
    assert set(found.verified) | set(found.not_run) == names
    assert set(found.verified.values()) == {1}
    for contender in ("memcpy local", "kvcr local", "kvcr peer", "raw kvcr peer", "nixl write"):
        assert found.find(contender, POINT, "get") is not None, found.not_run
    kinds = {(each.operation, each.state) for each in found.series}
    assert kinds == {(op, state) for op in ("set", "get", "exists") for state in ("cold", "warm")}


@SLOW
@pytest.mark.integration
def test_each_start_has_one_cold_call_and_warm_ones_that_follow_untimed_calls_on_other_pages(
    tmp_path: Path,
) -> None:
    plan = Plan((HEADLINE,), seconds=0.0, starts=2)
    found = run(tmp_path, Family("Tells", "broken:Tells", ("local",)), plan=plan)
    timed = {each.state: len(each.seconds) for each in found.series if each.operation == "set"}
    assert timed == {"cold": 2, "warm": 4}
    stored = (tmp_path / "logs" / "Tells-source.log").read_text(encoding="utf-8").split()
    untimed, compared = timed["warm"], 1
    assert len(stored) == sum(timed.values()) + untimed + compared
    assert len(set(stored)) == len(stored)


@SLOW
@pytest.mark.integration
@pytest.mark.parametrize("may_pause", [True, False])
def test_contenders_that_wait_are_stopped_unless_they_have_to_go_on(
    may_pause: bool, tmp_path: Path
) -> None:
    alone = Family("Alone", "broken:Alone", ("local",))
    other = Family("memcpy", "stores.copies:Memcpy", ("local",), may_pause=may_pause)
    found = run(tmp_path, alone, other)
    assert found.verified == ({"memcpy local": 1} | ({"Alone local": 1} if may_pause else {}))
    assert ("another contender runs" in found.not_run.get("Alone local", "")) is not may_pause


@SLOW
@pytest.mark.integration
@pytest.mark.parametrize(
    ("fault", "damage"),
    [
        ("MovesNothing", "3 of 3 x 4 KiB came back wrong"),
        ("FlipsOneBit", "1 of 3 x 4 KiB came back wrong"),
        ("KeepsTheFirst", "3 of 3 x 4 KiB came back wrong"),
    ],
)
def test_a_contender_that_moves_wrong_bytes_is_noticed(
    fault: str, damage: str, tmp_path: Path
) -> None:
    faulty = Family(fault, f"broken:{fault}", ("local",))
    sound = Family("memcpy", "stores.copies:Memcpy", ("local",))
    found = run(tmp_path, faulty, sound)
    assert found.damaged == (f"{fault} local: {damage}",)
    assert found.verified == {"memcpy local": 1}


@SLOW
@pytest.mark.integration
@pytest.mark.parametrize(
    ("fault", "reason"), [("FindsNothing", "exists found 0 of 3"), ("Ends", "its process ended")]
)
def test_a_contender_that_breaks_down_is_named_and_the_others_go_on(
    fault: str, reason: str, tmp_path: Path
) -> None:
    faulty = Family(fault, f"broken:{fault}", ("local",))
    sound = Family("memcpy", "stores.copies:Memcpy", ("local",))
    found = run(tmp_path, faulty, sound)
    assert reason in found.not_run[f"{fault} local"]
    assert found.failed == (f"{fault} local",)
    assert found.verified == {"memcpy local": 1}

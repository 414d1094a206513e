# SPDX-License-Identifier: Apache-2.0
"""The steps of a start are told once, and the lines that say why it ended are found."""

from pathlib import Path

from kvstrata_host.log import Milestones, decisive, tail


def test_a_step_is_told_once_and_only_when_its_line_is_whole(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    log.write_text("Load weight begin. type=X")
    milestones = Milestones(log)
    assert milestones.new() == []
    log.write_text("Load weight begin. type=X\nLoad weight begin again\n")
    assert milestones.new() == ["loading weights"]
    assert milestones.new() == []


def test_steps_are_told_in_the_order_of_a_start(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    log.write_text("server_args={}\nx\nUvicorn running on 1\n")
    assert Milestones(log).new() == ["arguments accepted", "HTTP up"]


def test_the_tail_is_short_and_an_absent_log_has_none(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    log.write_text("\n".join(f"{number}: {'x' * 1000}" for number in range(100)))
    lines = tail(log)
    assert lines[-1].startswith("99: ")
    assert len(lines) == 40
    assert max(len(line) for line in lines) == 400
    assert tail(tmp_path / "absent.log") == ()


def test_a_failure_is_told_rather_than_what_came_after_it() -> None:
    lines = ["server_args={'error': 1}", "ValueError: no pool", *(f"bye {n}" for n in range(9))]
    assert decisive(lines) == ("ValueError: no pool",)


def test_without_a_failure_the_last_lines_are_told() -> None:
    assert decisive([f"{number}" for number in range(9)]) == ("4", "5", "6", "7", "8")

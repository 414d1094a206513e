# SPDX-License-Identifier: Apache-2.0
"""Reading the backend's lines out of a server's log."""

from pathlib import Path

import pytest
from demo.answer import Answer
from demo.serverlog import Backup, Lines, LogFormatError, Restore, ServerLog

RESTORE = (
    "[2026-01-01 00:00:00] kvcr restore pages=127 restored=126 from_dram=1 from_peer=125 "
    "peer=tcp://127.0.0.1:7001 bytes=49938432 ms=66.2"
)
BACKUP = "[2026-01-01 00:00:00 TP0] kvcr backup pages=128 held=127 bytes=50331648 ms=47.1"
OTHERS = (
    "[2026-01-01 00:00:00] Creating storage backend 'kvcr' (kvstrata.kvcr.store.KvcrStore)",
    "[2026-01-01 00:00:00] kvcr restore failed, taken for a miss",
    "",
)


def test_a_restore_is_read_with_its_sources_and_its_time() -> None:
    lines = Lines((OTHERS[0], RESTORE, BACKUP))
    assert lines.restores() == (
        Restore(rank=0, pages=127, restored=126, from_own=1, from_peer=125, duration_ms=66.2),
    )


def test_a_backup_is_read_with_the_pages_that_are_held() -> None:
    held = Backup(rank=0, pages=128, held=127, duration_ms=47.1)
    assert Lines((RESTORE, BACKUP)).backups() == (held,)


def test_a_line_tells_which_rank_wrote_it() -> None:
    second = BACKUP.replace(" TP0]", " TP1]")
    assert [backup.rank for backup in Lines((BACKUP, second)).backups()] == [0, 1]
    ready = "[x{}] kvcr ready endpoint=tcp://127.0.0.1:7001 pages=9"
    assert Lines((ready.format(" TP0"),)).started_backends() == {0}
    assert Lines((ready.format(" TP0"), ready.format(" TP1"))).started_backends() == {0, 1}


def test_other_lines_are_no_transfers() -> None:
    lines = Lines(OTHERS)
    assert lines.restores() == ()
    assert lines.backups() == ()
    assert not lines.started_backends()
    assert not lines.peer_unreachable()


def test_the_start_of_the_backend_and_an_unreachable_peer_are_seen() -> None:
    assert Lines(("[x] kvcr ready endpoint=tcp://127.0.0.1:7001 pages=9",)).started_backends() == {
        0
    }
    unreachable = "[x] kvcr peer unreachable endpoint=tcp://127.0.0.1:7001, restoring locally"
    assert Lines((unreachable,)).peer_unreachable()


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        pytest.param(RESTORE.replace(" from_peer=125", ""), "no from_peer=", id="missing"),
        pytest.param(RESTORE.replace("=126", "=many"), "restored='many'", id="no-number"),
    ],
)
def test_a_line_that_cannot_be_counted_with_is_an_error(line: str, problem: str) -> None:
    with pytest.raises(LogFormatError, match=problem):
        Lines((line,)).restores()


def test_only_whole_lines_behind_the_position_are_read(tmp_path: Path) -> None:
    log = ServerLog(tmp_path / "log")
    log.path.write_text(f"{RESTORE}\n")
    position = log.end()
    with log.path.open("a") as stream:
        stream.write(f"{BACKUP}\n{RESTORE[:60]}")
    assert log.since(position).text == (BACKUP,)
    assert len(log.since(0).restores()) == 1


def test_storage_tokens_are_split_by_what_the_log_says(peer_answer: Answer) -> None:
    sources = peer_answer.sources
    assert (sources.computed, sources.own_dram, sources.peer_dram) == (16, 0, 2032)
    assert peer_answer.counts_agree
    assert peer_answer.timing.restore_s == pytest.approx(0.05)
    assert peer_answer.timing.first_token_s == pytest.approx(0.6)

"""The gauges that a load process reads with every batch: right, and cheap enough not to disturb its streams."""

import socket
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from agentperf.fleet import machine


class _OldKernel:
    """/proc/self/fd before Linux 6.2: its size is 0, so that it has to be listed."""

    def __init__(self) -> None:
        self.listed = 0

    def stat(self) -> SimpleNamespace:
        return SimpleNamespace(st_size=0)

    def iterdir(self) -> Iterator[Path]:
        self.listed += 1
        return iter([Path("0"), Path("1"), Path("2")])


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="no /proc")
def test_open_files_are_counted() -> None:
    # A new counter each time: where the folder has to be listed, one counter would repeat itself for 5 s.
    before = machine.OpenFiles().count(0)
    sockets = [socket.socket() for _ in range(40)]
    try:
        assert machine.OpenFiles().count(0) == before + 40
    finally:
        for each in sockets:
            each.close()
    assert machine.OpenFiles().count(0) == before


def test_a_folder_that_must_be_listed_is_listed_once_in_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    old = _OldKernel()
    monkeypatch.setattr(machine, "_FDS", old)
    files = machine.OpenFiles()
    every = machine.FDS_EVERY_NS
    assert [files.count(ns) for ns in (0, every // 2, every - 1)] == [3, 3, 3]
    assert old.listed == 1
    files.count(every)
    assert old.listed == 2


def test_no_proc_is_zero(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(machine, "_FDS", tmp_path / "none")
    assert machine.OpenFiles().count(0) == 0

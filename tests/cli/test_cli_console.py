"""How a command ends."""

import pytest

from agentperf.cli import console
from agentperf.errors import EndpointError, ExitCode, UsageError


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (UsageError("the flag is wrong", "give another"), ExitCode.USAGE),
        (EndpointError("it does not answer"), ExitCode.ENDPOINT),
        (KeyboardInterrupt(), ExitCode.INTERRUPTED),
        (NameError("a fault of ours"), ExitCode.INCONCLUSIVE),
    ],
)
def test_exit_codes(error: BaseException, code: ExitCode, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended, console.one_line_errors():
        raise error
    assert ended.value.code == int(code)
    told = capsys.readouterr().err
    assert ("Traceback" in told) == isinstance(error, NameError)
    assert told.strip()


def test_cause_and_remedy_are_a_line_each(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit), console.one_line_errors():
        raise UsageError("the flag is wrong", "give another")
    assert capsys.readouterr().err == "agentperf: error: the flag is wrong\n  remedy: give another\n"


def test_verbose_shows_the_traceback_and_keeps_the_code(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(console._STATE, "verbose", True)
    with pytest.raises(SystemExit) as ended, console.one_line_errors():
        raise UsageError("the flag is wrong")
    assert ended.value.code == int(ExitCode.USAGE)
    assert "Traceback" in capsys.readouterr().err

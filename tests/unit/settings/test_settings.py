"""Settings: what is said, by whom, and whether too late."""

import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_type_hints

import pytest

import madl
from madl import (
    ConfigurationError,
    LateSettingWarning,
    MissingCapabilityError,
    Pool,
    settings,
)
from madl.pool.default import open_pools
from madl.settings import SettingState
from madl.settings.kinds import shown
from madl.settings.known import DEFAULT_POOL_OPTIONS, SETTINGS

MIB = 1 << 20
HERE = Path(__file__)


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let nothing be said, and nothing be read, before a test and after it."""
    for setting in SETTINGS.values():
        monkeypatch.delenv(setting.variable, raising=False)
    monkeypatch.setattr("madl.settings._configured", {})
    monkeypatch.setattr("madl.settings._readings", {})
    close_default_pool()
    yield
    close_default_pool()


def close_default_pool() -> None:
    for pool in open_pools():
        if pool.device == "sim":
            pool.close()


def state(option: str) -> SettingState:
    [found] = [one for one in madl.configuration() if one.option == option]
    return found


def test_without_a_word_a_setting_has_its_default() -> None:
    assert state("fit") == ("fit", "MADL_FIT", "first", "default", None, ())
    assert {one.origin for one in madl.configuration()} == {"default"}


def test_configure_is_typed_for_every_setting() -> None:
    assert get_type_hints(settings.Options).keys() == SETTINGS.keys()


def test_the_settings_of_default_pools_are_arguments_of_a_pool() -> None:
    defaults = Pool.__init__.__kwdefaults__ or {}

    assert {name: defaults[name] for name in DEFAULT_POOL_OPTIONS} == {
        name: SETTINGS[name].default for name in DEFAULT_POOL_OPTIONS
    }


def test_a_default_pool_has_the_limit_of_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("MADL_LIMIT", "64 MiB")

    assert madl.default_pool("sim").limit_nbytes == 64 * MIB
    assert state("limit")[2:] == ("64.0 MiB", "environment", None, ())


def test_what_the_program_says_goes_before_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("MADL_LIMIT", "64 MiB")
    monkeypatch.setenv("MADL_PAGE_SIZE", "64 KiB")

    madl.configure(limit=None)

    pool = madl.default_pool("sim")
    assert (pool.limit_nbytes, pool.page_nbytes) == (None, 64 << 10)


def test_configure_is_remembered_with_its_line() -> None:
    madl.configure(fit="best")

    line = HERE.read_text("utf-8").split('configure(fit="best")')[0].count("\n") + 1
    assert state("fit")[2:] == ("best", "configure", f"{HERE}:{line}", ())


def test_an_empty_variable_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MADL_FIT", " ")

    assert state("fit").origin == "default"


def test_a_pool_that_is_made_by_the_program_has_no_limit_but_its_own() -> None:
    madl.configure(limit=MIB)

    assert Pool("sim").limit_nbytes is None


@pytest.mark.parametrize(
    ("limit", "expected"),
    [
        ("3 MiB", 3 * MIB),
        ("3 MiB, cpu=1 MiB", 3 * MIB),
        ("cpu=1 MiB", None),
        ("sim = 2 MiB, 3 MiB", 2 * MIB),
        ("sim:0=1 MiB, sim=2 MiB", MIB),
        ({"sim": "2 MiB", "": "3 MiB"}, 2 * MIB),
        ({"cpu": "2 MiB", "": 3 * MIB}, 3 * MIB),
        ("3 MiB, sim=none", None),
    ],
)
def test_a_device_has_its_own_value_or_that_of_its_kind_or_that_for_all(
    limit: Any,  # noqa: ANN401  # each of the types it may have
    expected: int | None,
) -> None:
    madl.configure(limit=limit)

    assert madl.default_pool("sim").limit_nbytes == expected


def test_a_value_reads_as_it_is_shown() -> None:
    text = "8.0 MiB, cuda=20.0 MiB, cuda:1=none"

    madl.configure(limit=text)

    assert state("limit").value == text


@pytest.mark.parametrize("said", [True, "on", "1", "True", "yes"])
def test_a_switch_is_on(said: bool | str) -> None:
    madl.configure(disable_plugin_autoload=said)

    assert state("disable_plugin_autoload").value == "on"


@pytest.mark.parametrize("said", [True, False, "pages"])
def test_debug_is_what_a_pool_takes(said: bool | str) -> None:
    madl.configure(debug=said)

    assert SETTINGS["debug"].parse_one(state("debug").value, "") == said


@pytest.mark.parametrize("said", [True, False, "explicit", None])
def test_huge_pages_are_what_a_pool_takes(said: Any) -> None:  # noqa: ANN401  # as above
    madl.configure(huge_pages={"cpu": said})

    assert SETTINGS["huge_pages"].parse_one(shown(said), "") == said
    assert state("huge_pages").value == f"cpu={shown(said)}"


@pytest.mark.parametrize(
    ("options", "kind", "text"),
    [
        ({"limt": 1}, TypeError, "configure has no option 'limt'. Try: limit="),
        ({"pool": "off"}, TypeError, "configure has no option 'pool'. Try: pooling="),
        (
            {"pooling": "maybe"},
            ValueError,
            "pooling must be on or off, got 'maybe'",
        ),
        ({"pooling": 1}, ValueError, "pooling must be on or off, got 1"),
        ({"fit": "worst"}, ValueError, "fit must be first or best, got 'worst'"),
        ({"fit": []}, ValueError, "fit must be first or best, got []"),
        (
            {"huge_pages": "some"},
            ValueError,
            "huge_pages must be on, off, explicit or none, got 'some'",
        ),
        (
            {"limit": True},
            TypeError,
            "limit must be an int or a text such as '64 MiB', got True (bool)",
        ),
        (
            {"limit": "cuda=lots"},
            ValueError,
            "limit must be a byte count such as '64 MiB', '64MB' or '4096', got 'lots'",
        ),
        (
            {"limit": "Cuda 0=1"},
            ValueError,
            "limit must name devices like 'cuda' or 'cuda:0', got 'Cuda 0'",
        ),
        (
            {"limit": "1, 2"},
            ValueError,
            "limit must have one value for all devices, got '1, 2'",
        ),
        (
            {"limit": "cpu=1,cpu=2"},
            ValueError,
            "limit must have one value for 'cpu', got 'cpu=1,cpu=2'",
        ),
        ({"debug": "x"}, ValueError, "debug must be on, off or pages, got 'x'"),
        ({"plugins": 3}, TypeError, "plugins must be names with commas, got 3"),
        ({"ignore": [3]}, TypeError, "ignore must be names with commas, got [3]"),
    ],
    ids=str,
)
def test_a_malformed_option_is_refused_and_nothing_is_set(
    options: dict[str, Any], kind: type[Exception], text: str
) -> None:
    with pytest.raises(kind) as caught:
        madl.configure(recycle=False, **options)

    assert str(caught.value) == text
    assert {one.origin for one in madl.configuration()} == {"default"}


def test_an_option_like_no_other_is_refused_with_all_there_are() -> None:
    with pytest.raises(TypeError) as caught:  # the whole text is compared
        madl.configure(zzz=1)  # type: ignore[call-arg]  # wrong

    options = ", ".join(f"{option}=" for option in SETTINGS)
    assert str(caught.value) == f"configure has no option 'zzz'. Try: {options}"


@pytest.mark.parametrize(
    ("variable", "text", "error"),
    [
        (
            "MADL_POOL",
            "maybe",
            "MADL_POOL must be on or off, got 'maybe'. Try: unset it, which means on",
        ),
        (
            "MADL_LIMIT",
            "-1",
            "MADL_LIMIT must be a byte count such as '64 MiB', '64MB' or '4096', got "
            "'-1'. Try: unset it, which means none",
        ),
        (
            "MADL_LIMIT",
            "99999999999 PiB",
            "MADL_LIMIT must fit the address space, got",
        ),
        (
            "MADL_LIMIT",
            "smi=1 MiB",
            "limit names devices of kind 'smi', which nothing opens; it is from "
            "MADL_LIMIT in the environment. Try: sim",
        ),
        (
            "MADL_LIMT",
            "1 MiB",
            "the environment has MADL_LIMT, which is no setting of madl's. Try: "
            "MADL_LIMIT instead, or MADL_IGNORE=MADL_LIMT if it is another program's",
        ),
        (
            "MADL_QQQQQQ",
            "",
            "the environment has MADL_QQQQQQ, which is no setting of madl's. Try: "
            "MADL_IGNORE=MADL_QQQQQQ if it is another program's",
        ),
    ],
)
def test_what_is_wrong_with_a_variable_is_said_when_a_pool_is_made(
    variable: str, text: str, error: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, text)

    with pytest.raises(ConfigurationError) as caught:
        madl.default_pool("sim")

    assert str(caught.value).startswith(error)
    assert not hasattr(caught.value, "__notes__")


def test_an_unknown_variable_is_an_error_of_every_pool(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("MADL_LIMT", "1")

    for use in (lambda: Pool("sim"), madl.configure, madl.configuration):
        with pytest.raises(ConfigurationError, match="which is no setting of madl's"):
            use()


def test_variables_of_other_programs_can_be_ignored(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("MADL_HOME", "/srv")
    monkeypatch.setenv("MADL_TEAM", "a")
    monkeypatch.setenv("MADL_IGNORE", "MADL_HOME, MADL_TEAM")

    assert state("ignore").value == "MADL_HOME,MADL_TEAM"


def test_the_program_can_ignore_them_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MADL_HOME", "/srv")

    madl.configure(ignore=["MADL_HOME"])

    assert Pool("sim").limit_nbytes is None


def test_a_setting_that_the_device_cannot_honour_is_named_in_a_note(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("MADL_HUGE_PAGES", "on")

    with pytest.raises(MissingCapabilityError, match="sim has no huge pages") as caught:
        madl.default_pool("sim")

    assert caught.value.__notes__ == [
        "Of the settings, huge_pages on is from MADL_HUGE_PAGES in the environment."
    ]


def test_a_setting_that_does_not_suit_the_device_is_named_in_a_note() -> None:
    madl.configure(page_size=100)

    with pytest.raises(ValueError, match="page_size must be a multiple") as caught:
        madl.default_pool("sim")

    [note] = caught.value.__notes__
    blamed = f"Of the settings, page_size 100 B is from configure at {HERE}:"
    assert note.startswith(blamed)


def test_what_is_said_too_late_is_warned_of_and_shown() -> None:
    madl.default_pool("sim")

    with pytest.warns(LateSettingWarning) as caught:
        madl.configure(limit="2 MiB")

    [late] = state("limit").late
    assert late.startswith(f"sim has none since {HERE}:")
    assert str(caught[0].message) == (
        f"limit is set to 2.0 MiB when it has been read: {late}. Try: call "
        "madl.configure before the first allocation"
    )
    assert caught[0].filename == str(HERE)
    assert madl.default_pool("sim").limit_nbytes is None


@pytest.mark.filterwarnings("error::madl.LateSettingWarning")
def test_a_warning_that_is_an_error_leaves_everything_as_it_was() -> None:
    madl.default_pool("sim")

    with pytest.raises(LateSettingWarning):
        madl.configure(recycle=False, limit="2 MiB")

    assert (state("recycle").origin, state("limit").origin) == ("default", "default")


def test_the_environment_can_be_too_late_as_well(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    madl.default_pool("sim")

    monkeypatch.setitem(os.environ, "MADL_FIT", "best")

    assert [text.split(" since")[0] for text in state("fit").late] == ["sim has first"]


def test_what_changes_nothing_comes_never_too_late() -> None:
    madl.default_pool("sim")

    madl.configure(limit="cuda=2 GiB", fit="first")

    assert state("limit").late == state("fit").late == ()


def test_a_pool_that_is_made_again_follows_what_is_said_now() -> None:
    madl.default_pool("sim")
    with pytest.warns(LateSettingWarning):
        madl.configure(limit="2 MiB")

    madl.default_pool("sim").close()

    assert madl.default_pool("sim").limit_nbytes == 2 * MIB
    assert state("limit").late == ()


def test_threads_that_configure_at_once_all_have_their_say() -> None:
    said = {"limit": MIB, "fit": "best", "recycle": False, "page_size": 1 << 16}
    start = threading.Barrier(len(said))

    def say(option: str, value: Any) -> None:  # noqa: ANN401  # each of its type
        start.wait()
        madl.configure(**{option: value})

    threads = [threading.Thread(target=say, args=one) for one in said.items()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert {state(option).origin for option in said} == {"configure"}


@pytest.mark.parametrize("said", ["off", False, {"sim": "off"}, "on, sim=off"])
def test_pooling_is_a_setting_of_every_pool(said: Any) -> None:  # noqa: ANN401  # as above
    madl.configure(pooling=said)

    pool = Pool("sim")
    memories = [pool.allocate(100), pool.allocate(100)]

    assert len(pool.snapshot().arenas) == len(memories)

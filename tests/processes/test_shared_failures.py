"""Tokens that cannot be attached, and processes that are killed."""

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.programs import run_as_file

if sys.platform != "linux":
    pytest.skip("looks into /proc", allow_module_level=True)

MIB = 1 << 20
LARGE = 256 * MIB

TAKE = """
import pickle, sys
import madl

token = pickle.loads(open(sys.argv[1], "rb").read())
try:
    token.attach()
except madl.AttachError as error:
    print(error.reason)
    try:
        pickle.loads(pickle.dumps(token)).attach()
    except madl.AttachError as error:
        print(error.reason)
"""

GIVE = """
import pickle, sys, time
import madl

memory = madl.allocate(1 << 20, device="shared")
with open(sys.argv[1], "wb") as file:
    file.write(pickle.dumps(madl.share(memory)))
print("written", flush=True)
if sys.argv[2] == "stay":
    sys.stdin.read()
"""


@pytest.fixture
def sent() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder, "token")


def start(code: str, *arguments: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", code, *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def take(sent: Path) -> list[str]:
    """Return why a process of no kin cannot attach, now and when it sends it on."""
    output, error = start(TAKE, sent).communicate(timeout=60)
    assert error == ""
    return output.splitlines()


def test_a_process_that_it_was_not_sent_to_cannot_attach(sent: Path) -> None:
    giver = start(GIVE, sent, "stay")
    assert giver.stdout is not None
    giver.stdout.readline()

    reasons = take(sent)

    giver.communicate(timeout=60)
    assert reasons == [f"process {giver.pid} is no relative of this one"] * 2


def test_a_token_of_a_process_that_has_ended_says_so(sent: Path) -> None:
    giver = start(GIVE, sent, "go")
    giver.communicate(timeout=60)

    reasons = take(sent)

    assert reasons == [f"process {giver.pid}, which sent it, has ended"] * 2


TWICE = """
import os, pickle
import madl

sent = pickle.dumps(madl.share(madl.allocate(100, device="shared")))
pickle.loads(sent).attach()
try:
    pickle.loads(sent).attach()
except madl.AttachError as error:
    text = str(error).replace(str(os.getpid()), "PID")
print(text)
"""


def test_what_was_sent_arrives_once() -> None:
    done = run_as_file(TWICE)

    assert done.stdout == (
        "shared: cannot attach 100 B: process PID has given it to another process, or "
        "has ended. Try: send the token to each process anew, and end the sender later"
        "\n"
    )


OTHER_USER = """
import os, sys
os.setgid(65534)
os.setuid(65534)
for number in sys.argv[2:]:
    for mode in "rb", "r+b":
        try:
            open(f"/proc/{sys.argv[1]}/fd/{number}", mode)
        except PermissionError:
            print("refused")
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
@pytest.mark.parametrize("kind", ["memfd", "shm_open"])
def test_another_user_cannot_open_the_memory(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import madl
    from madl.backends.host import shared_posix

    if kind == "shm_open":
        monkeypatch.setattr(shared_posix, "_create", None)
    pool = madl.Pool("shared")
    token = madl.share(pool.allocate(100))
    file = token._shared.descriptor.file  # type: ignore[attr-defined]  # its descriptor

    output, error = start(OTHER_USER, os.getpid(), file).communicate(timeout=60)

    assert (output, error) == ("refused\nrefused\n", "")


KILLED = """
import multiprocessing, os, signal, sys, time
import madl

LARGE = 256 << 20

def shared_nbytes():
    for line in open("/proc/meminfo"):
        if line.startswith("Shmem:"):
            return int(line.split()[1]) * 1024

def settle(bound):
    # Other programs share memory too: what is asked is whether ours has gone.
    end = time.monotonic() + 30
    while shared_nbytes() > bound:
        assert time.monotonic() < end, (shared_nbytes(), bound)
        time.sleep(0.05)

def traces():
    names = [name for name in os.listdir("/dev/shm") if name.startswith("madl")]
    return len(os.listdir("/proc/self/fd")), names

def hold(token, sender):
    attached = token.attach()
    own = madl.allocate(LARGE, device="shared")
    own.fill(1)
    sender.send(madl.share(own))
    time.sleep(600)

if __name__ == "__main__":
    context = multiprocessing.get_context(sys.argv[1])
    pool = madl.Pool("shared")
    memory = pool.allocate(1 << 20)
    memory.fill(5)
    before = shared_nbytes()
    for turn in range(3):
        # Not a queue: whoever is killed may hold its lock, and then nobody gets it.
        receiver, sender = context.Pipe(duplex=False)
        worker = context.Process(target=hold, args=(madl.share(memory), sender))
        worker.start()
        attached = receiver.recv().attach()
        receiver.close()
        sender.close()
        os.kill(worker.pid, signal.SIGKILL)
        worker.join()
        worker.close()
        # What a killed process had shared lives on with us, and with us alone.
        assert attached[LARGE - 1 : LARGE].tobytes() == b"\\x01"
        attached.free()
        del attached
        settle(before + LARGE // 2)
        if turn == 0:
            found = traces()
    assert traces() == found, (traces(), found)
    assert memory.tobytes() == b"\\x05" * (1 << 20)
    pool.check()
"""


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_a_killed_process_leaves_nothing_behind(method: str) -> None:
    done = run_as_file(KILLED, method)

    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


KILLED_ALONE = """
import time
import madl
held = [madl.allocate(256 << 20, device="shared")]
held[0].fill(1)
token = madl.share(held[0])
attached = token.attach()
print("ready", flush=True)
time.sleep(600)
"""


def test_a_killed_owner_leaves_nothing_behind() -> None:
    names = _names()
    before = _shared_nbytes()
    owner = start(KILLED_ALONE)
    assert owner.stdout is not None
    owner.stdout.readline()
    assert _shared_nbytes() > before + LARGE // 2

    owner.send_signal(signal.SIGKILL)
    owner.communicate()

    end = time.monotonic() + 30
    while _shared_nbytes() > before + LARGE // 2:
        assert time.monotonic() < end
        time.sleep(0.05)
    assert _names() == names


def _shared_nbytes() -> int:
    found = Path("/proc/meminfo").read_text().partition("Shmem:")[2].split()[0]
    return int(found) * 1024


def _names() -> set[str]:
    """Return what has a name, without the semaphores that other programs make."""
    return {name for name in os.listdir("/dev/shm") if not name.startswith("sem.")}

"""Break the code on purpose, one place at a time; a test must see each break.

Run by ``nox -s mutate [-- WORD ...]``, where words choose what to try by file or by
what it would break. Each mutation is made in a copy of the package, against which
the fast tests run until the first one fails. One that survives is a hole in the tests.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent
NOT_COPIED = shutil.ignore_patterns("*.so", "*.pyd", "*.c", "__pycache__")
SUITES = [
    *(
        f"tests/unit/{room}.py"
        for room in (
            "core/test_skiplist",
            "core/test_pages",
            "core/test_first_fit",
            "core/test_linear",
            "pool/test_growth",
            "pool/test_lock",
            "pool/test_streams",
            "pool/test_zeroing",
            "pool/test_pool",
            "pool/test_pool_limits",
            "pool/test_accounting",
            "pool/debug/test_mode",
            "hotpath/test_in_flight",
            "hotpath/test_interrupted_free",
            "pool/test_interruptions",
            "memory/test_meanwhile",
        )
    ),
    *(
        f"tests/property/test_{name}.py"
        for name in ("skiplist", "first_fit", "pool", "whole_pool", "faults")
    ),
]
SECONDS_PER_TEST = 60
"""A mutation that makes a loop endless is caught by the clock."""


class Mutation(NamedTuple):
    """One wrong line."""

    file: str
    old: str
    """Text that occurs once in the file."""
    new: str
    why: str
    """What would be broken."""


class Outcome(NamedTuple):
    """What the tests said to a mutation."""

    mutation: Mutation
    seen_by: str
    """The first test that failed; empty when the mutation survived."""
    seconds: float


MUTATIONS = [
    Mutation(
        "core/skiplist.py",
        "words[node + slot + 1] = reach\n            level += 1",
        "level += 1",
        "reach is not refreshed when a block shrinks",
    ),
    Mutation(
        "core/skiplist.py",
        "if reach >= had:  #",
        "if reach > had:  #",
        "reach is not refreshed before a new node",
    ),
    Mutation(
        "core/skiplist.py",
        "self._raise_from(height, nbytes)\n\n    def _insert",
        "pass\n\n    def _insert",
        "reach is not raised when a block grows downwards",
    ),
    Mutation(
        "core/skiplist.py",
        "while words[node + slot + 1] < nbytes:",
        "while words[node + slot + 1] <= nbytes:",
        "a search passes a block of just the size",
    ),
    Mutation(
        "core/skiplist.py",
        "if left and words[left] + words[left + 3] == offset:",
        "if left and words[left] + words[left + 3] == -1:",
        "no coalescing with the block below",
    ),
    Mutation(
        "core/skiplist.py",
        "total += words[right + 3]\n                self._unlink(right)",
        "total += words[right + 3]",
        "a block that was joined stays in the index",
    ),
    Mutation(
        "core/skiplist.py",
        "self._complete_path(node, self.before_found)",
        "pass",
        "a node is unlinked from where the search stood",
    ),
    Mutation(
        "core/skiplist.py",
        "if stop > offset + nbytes:\n",
        "if stop < 0:\n",
        "what is left of a split behind an aligned block is lost",
    ),
    Mutation(
        "core/skiplist.py",
        "(words[node] + alignment - 1) // alignment",
        "(words[node] + alignment) // alignment",
        "an aligned block is passed by",
    ),
    Mutation(
        "core/skiplist.py",
        "right and words[right] < stop",
        "right and words[right] < offset",
        "a range that is free already can be freed",
    ),
    Mutation(
        "core/pages.py",
        "if first * page_nbytes < free_offset:",
        "if first * page_nbytes <= free_offset:",
        "a page that became idle is not counted so",
    ),
    Mutation(
        "core/pages.py",
        "if stop * page_nbytes > free_offset + free_nbytes:",
        "if stop * page_nbytes > free_offset + free_nbytes + page_nbytes:",
        "a page with a live byte counts as idle",
    ),
    Mutation(
        "core/pages.py",
        "states[first] = 1\n                self.idle -= 1",
        "states[first] = 1",
        "idle pages are miscounted when one becomes live",
    ),
    Mutation(
        "core/pages.py",
        "and self.states[first - 1] == 2:",
        "and self.states[first - 1] != 0:",
        "a live page is recycled with the idle ones above it",
    ),
    Mutation(
        "core/first_fit.py",
        "if self.pages.missing(offset, nbytes):",
        "if offset < 0:",
        "a block is placed where no page is committed",
    ),
    Mutation(
        "core/first_fit.py",
        "self.index.carve(offset, nbytes)\n        self.pages.occupy(offset, nbytes)",
        "self.index.carve(offset, nbytes)",
        "the pages under a new block stay idle",
    ),
    Mutation(
        "core/first_fit.py",
        "self.index.reserve(self.placed_count + 2)",
        "self.index.reserve(1)",
        "a block is placed without memory for its free",
    ),
    Mutation(
        "core/skiplist.py",
        "others = max(self.reserved - self.made - 1, 0)",
        "others = 0",
        "tall nodes take the memory that is reserved for others",
    ),
    Mutation(
        "core/first_fit.py",
        "self.free_nbytes += nbytes",
        "pass",
        "an arena never becomes empty again",
    ),
    Mutation(
        "pool/paging.py",
        "if room_nbytes is not None and new * arena.page_nbytes > room_nbytes:",
        "if False:",
        "the limit is not looked at",
    ),
    Mutation(
        "pool/arena.py",
        "        self.is_leaving = True\n",
        "",
        "a block is placed in what an interrupted release has given back",
    ),
    Mutation(
        "pool/growth.py",
        "            if arena not in self.arenas:  # a trim tries again\n",
        "            if False:\n",
        "a reservation that could not be released is lost",
    ),
    Mutation(
        "pool/arena.py",
        "        except BaseException:\n            self.budget.give_back(nbytes)\n",
        "        except OutOfMemoryError:\n            self.budget.give_back(nbytes)\n",
        "what a device that fails did not give counts against the limit",
    ),
    Mutation(
        "pool/arena.py",
        "pages.decommit(first, stop)\n        self.budget.decommit(",
        "pages.decommit(first, stop)\n        (",
        "pages that went back count as committed",
    ),
    Mutation(
        "pool/arena.py",
        "if alignment <= promised:",
        "if alignment >= 0:",
        "an offset is aligned, and not the address",
    ),
    Mutation(
        "pool/arena.py",
        "if offset + nbytes <= first * self.page_nbytes:",
        "if offset < first * self.page_nbytes:",
        "at the limit a block is placed where no page is committed",
    ),
    Mutation(
        "pool/growth.py",
        "        except BaseException:\n            self._close(arena)\n",
        "        except OutOfMemoryError:\n            self._close(arena)\n",
        "a device that fails leaves a reservation behind",
    ),
    Mutation(
        "pool/growth.py",
        "            band.clear()",
        "            pass",
        "a closed pool goes on placing blocks",
    ),
    Mutation(
        "pool/paging.py",
        " or (one.has_idle() and one.is_done())",
        " or one.has_idle()",
        "pages of a busy stream are moved",
    ),
    Mutation(
        "pool/growth.py",
        "self.order.follow(self.order_of(arena))",
        "pass",
        "a stream takes over memory without waiting",
    ),
    Mutation(
        "pool/streams.py",
        "not is_busy and entry.is_unused() and entry.lane",
        "entry.lane",
        "a block goes back while another stream uses it",
    ),
    Mutation(
        "pool/allocate.py",
        "            unbin(memory)\n",
        "",
        "a block that another stream uses goes to its bin",
    ),
    Mutation(
        "pool/lock.py",
        "with shared.lock:\n                # No call between",
        "if True:\n                # No call between",
        "a skipped lock: a trim while another thread grows the pool",
    ),
    Mutation(
        "pool/allocate.py",
        "bin.\n        parts.growth.let_go()\n",
        "bin.\n",
        "trim unmaps what queued work uses",
    ),
    Mutation(
        "pool/paging.py",
        "            arena.commit(first, end)\n",
        "",
        "pages are not committed",
    ),
    Mutation(
        "pool/paging.py",
        "keep = under if donor is arena else (0, 0)",
        "keep = (0, 0)",
        "pages are recycled from under the block that needs them",
    ),
    Mutation(
        "pool/paging.py",
        "idle -= arena.blocks.pages.idle_under(offset, nbytes)",
        "pass",
        "more idle pages are counted on than there are",
    ),
    Mutation(
        "pool/paging.py",
        "            _decommit(arena, committed)\n            raise",
        "            raise",
        "a refused recycling leaves more committed than before",
    ),
    Mutation(
        "pool/arena.py",
        "        into.blocks.pages.commit(destination, destination + stop - first)\n",
        "",
        "a recycled page is lost",
    ),
    Mutation(
        "hotpath/fallback.py",
        "            del home[-1]\n",
        "",
        "a block is handed out twice",
    ),
    Mutation(
        "hotpath/fallback.py",
        "with shared.lock:\n                # No call before",
        "if True:\n                # No call before",
        "a skipped lock: a miss while another thread grows the pool",
    ),
    Mutation(
        "hotpath/fallback.py",
        "        pool._lane.freed_after_close()\n",
        "        pass\n",
        "a closed pool keeps what is freed",
    ),
    Mutation(
        "hotpath/fallback.py",
        "capacity = -(-nbytes // BLOCK_GRANULARITY) * BLOCK_GRANULARITY",
        "capacity = max(nbytes // BLOCK_GRANULARITY, 1) * BLOCK_GRANULARITY",
        "a block is smaller than what was asked for",
    ),
    Mutation(
        "hotpath/fallback.py",
        "arena.blocks.free(block.offset, block.capacity)",
        "arena.blocks.free(block.offset, block.nbytes or block.capacity)",
        "the padding of a block leaks",
    ),
    Mutation(
        "hotpath/fallback.py",
        "            self._placed.discard(block)\n",
        "",
        "a block that went back to the index counts as live",
    ),
    Mutation(
        "hotpath/fallback.py",
        "        bins.shared.live_nbytes -= block.nbytes\n",
        "",
        "freed bytes count as live",
    ),
    Mutation(
        "pool/zeroing.py",
        "nbytes = arena.use_until(end) - offset",
        "nbytes = 0",
        "what was used before is handed out as it was",
    ),
    Mutation(
        "pool/arena.py",
        "into.use_until(end)",
        "pass",
        "pages that were moved bring their content along",
    ),
    Mutation(
        "hotpath/fallback.py",
        "ctypes.memset(address, 0, block.capacity)",
        "ctypes.memset(address, 0, block.capacity // 2)",
        "half of a freed block is not wiped",
    ),
    Mutation(
        "pool/zeroing.py",
        "order = growth.order_of(arena)",
        "order = growth.order",
        "a block is wiped in a stream that nobody waits for",
    ),
    Mutation(
        "pool/allocate.py",
        "parts.growth.let_go()  # again",
        "pass  # again",
        "memory is given back while it is being wiped",
    ),
    Mutation(
        "hotpath/fallback.py",
        "if keeper._root.references > _WITHOUT_VIEWS:",
        "if False:",
        "a resize takes the block from under a view made meanwhile",
    ),
    Mutation(
        "hotpath/fallback.py",
        "        if nbytes:",
        "        if False:",
        "a view shows a block that was moved while it was made",
    ),
    Mutation(
        "memory/methods.py",
        'with Pinned(memory, "fill()"):',
        "if True:",
        "a fill writes to a block that was freed meanwhile",
    ),
    Mutation(
        "memory/copies.py",
        "kept = pin(memory, use)\n",
        "kept = None\n",
        "a device's copy reads or writes a block that was freed meanwhile",
    ),
    Mutation(
        "memory/place.py",
        "check_inside(memory, part.start, part.parent.nbytes)",
        "pass",
        "a slice reaches beyond its memory, which was resized while it was cut",
    ),
    Mutation(
        "hotpath/fallback.py",
        "            block.taken = ident, self.shared.placed_count\n            del",
        "            del",
        "a block leaves its bin without being marked in flight",
    ),
    Mutation(
        "hotpath/fallback.py",
        "if not (b.is_live or b.taken)]",
        "if not b.is_live]",
        "recovery takes a block in flight for a lost one",
    ),
    Mutation(
        "hotpath/fallback.py",
        "        self._sort_freed()\n        home =",
        "        home =",
        "what was freed is not in its bin when the next allocation looks there",
    ),
    Mutation(
        "hotpath/fallback.py",
        "self.returned.append(block)\n\n    def gather",
        "pass\n\n    def gather",
        "a block whose handle could not be made is lost",
    ),
    Mutation(
        "hotpath/fallback.py",
        "if self.users or self._asks or block.arena.is_dedicated:",
        "if self._asks or block.arena.is_dedicated:",
        "a freed block that other streams use goes to the index at once",
    ),
    Mutation(
        "pool/recovery.py",
        "all(lane.bins.gather_lost() for lane in lanes)",
        "True",
        "recovery leaves blocks out that no list has",
    ),
    Mutation(
        "pool/recovery.py",
        "        arena.recover(placed[arena])\n",
        "        pass\n",
        "recovery does not rebuild the indexes",
    ),
    Mutation(
        "pool/streams.py",
        "            self.lanes.append(made[1])\n            # A fin",
        "            # A fin",
        "a lane can be found that is not listed",
    ),
    Mutation(
        "pool/lock.py",
        "                shared.lock_holder = ident\n                locks",
        "                locks",
        "the holder of the lock is not noted: a call waits for its own thread",
    ),
    Mutation(
        "pool/lock.py",
        "is unknown\n                    shared.was_interrupted = True\n",
        "is unknown\n",
        "an interruption is not noted, so nothing is rebuilt",
    ),
    Mutation(
        "pool/allocate.py",
        "keep = 0 if parts.lock.is_closed else debug.quarantine.most_nbytes",
        "keep = 0",
        "the quarantine lets a freed block go at once",
    ),
    Mutation(
        "pool/debug/mode.py",
        "self.quarantine.arrive(Held(lane, block, guard, place, users or []))",
        "self.quarantine.arrive(Held(lane, block, guard, place, []))",
        "guards are looked at while another stream writes",
    ),
]


def mutated(mutation: Mutation) -> str:
    """Return a file's text with a mutation in it."""
    text = (ROOT / "madl" / mutation.file).read_text("utf-8")
    if text.count(mutation.old) != 1:
        sys.exit(f"{mutation.file} must have this once: {mutation.old!r}")
    return text.replace(mutation.old, mutation.new)


def try_mutation(mutation: Mutation) -> Outcome:
    """Run the tests against a copy with the mutation in it."""
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder)
        shutil.copytree(ROOT / "madl", copy / "madl", ignore=NOT_COPIED)
        shutil.copytree(ROOT / "tests", copy / "tests", ignore=NOT_COPIED)
        shutil.copy(ROOT / "pyproject.toml", copy)
        (copy / "madl" / mutation.file).write_text(mutated(mutation), "utf-8")
        seen_by = first_failure(copy)
    return Outcome(mutation, seen_by, time.perf_counter() - start)


def first_failure(copy: Path) -> str:
    """Return the first test that fails on a copy of package and tests."""
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-x", "-q", "-m", "not slow", "-p"),
            *("no:cacheprovider", f"--timeout={SECONDS_PER_TEST}", *SUITES),
        ],
        cwd=copy,
        env={**os.environ, "PYTHONPATH": str(copy), "HYPOTHESIS_PROFILE": "ci"},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode == 0:
        return ""
    failed = re.search(r"^(?:FAILED|ERROR) tests/(\S+)", done.stdout, re.MULTILINE)
    # Without a summary it was the clock that ended the run.
    return failed[1] if failed else "the time limit"


def main(words: list[str]) -> int:
    """Try the mutations with any of the words, or all; return 1 if one survives."""
    chosen = [
        mutation
        for mutation in MUTATIONS
        if not words or any(word in mutation.file + mutation.why for word in words)
    ]
    for mutation in chosen:
        mutated(mutation)  # first: the list may be out of date
    if failed := first_failure(ROOT):
        sys.exit(f"{failed} fails without a mutation; mend that first")
    with ThreadPoolExecutor(max(1, (os.cpu_count() or 2) // 2)) as executor:
        survivors = 0
        for mutation, seen_by, seconds in executor.map(try_mutation, chosen):
            survivors += not seen_by
            verdict = f"seen by {seen_by}" if seen_by else "SURVIVED"
            print(f"{seconds:5.1f} s  {mutation.file}: {mutation.why}", flush=True)
            print(f"         {verdict}")
    print(f"{len(chosen) - survivors} of {len(chosen)} mutations seen")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

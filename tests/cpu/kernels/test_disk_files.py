"""The folder of the cache keeps its limit: the kernels unused for the longest time go, nothing else
goes, and other processes that use the folder notice nothing.
"""

import json
import logging
import os
import time
from contextlib import contextmanager
from pathlib import Path

import pytest
from processes import output_of
from sampling import count, sampled

from implicit_conv.kernels import sources
from implicit_conv.process import disk_folder
from implicit_conv.process.disk import HEADER_BYTES, Store
from implicit_conv.process.disk_folder import (
    CHOICE,
    ENTRY_BYTES,
    KERNEL,
    TEMPORARY,
    TIMES,
)

DAY = 86400
LIMIT = 64 << 10
PAYLOAD = bytes(1024 - HEADER_BYTES)  # of an entry of 1 KiB, a 64th of LIMIT
KEPT = 48  # such entries are three quarters of LIMIT

# Processes that save, load, prune and clear at once. Payloads follow from names. Prints the largest
# size that the folder was seen to have, and what each kind of process did.
CROWD = """
import json, logging, os, random, sys
from pathlib import Path
from implicit_conv.process.disk import Store
from implicit_conv.process.disk_folder import KERNEL, TEMPORARY

folder, limit, count = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
names = [f"kernel-{number:032x}.kernel" for number in range(1000)]
payloads = [random.Random(number).randbytes(random.Random(number).randrange(100, 4000))
            for number in range(1000)]
roles = ["write"] * 16 + ["read"] * 4 + ["clear"]

class Strict(logging.Handler):
    def emit(self, record):
        raise AssertionError(record.getMessage())
logging.getLogger("implicit_conv").addHandler(Strict())

def work(role, seed):
    store, rng, found = Store(folder, limit), random.Random(seed), 0
    for step in range(count):
        number = rng.randrange(rng.choice([50, 1000]))
        if role == "clear":
            if step % 100 == 99:
                found += len(store.remove(KERNEL, TEMPORARY))
        elif role == "read" or step % 2:
            payload = store.load(names[number])
            assert payload is None or payload == payloads[number], names[number]
            found += payload is not None
        else:
            store.save(names[number], payloads[number])
    return found

children = {}
for seed, role in enumerate(roles):
    receive, send = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.write(send, b"%d" % work(role, seed))
            status = 0
        except BaseException:
            sys.excepthook(*sys.exc_info())
        finally:
            os._exit(status)
    os.close(send)
    children[child] = role, receive
totals, largest, failed = dict.fromkeys(roles, 0), 0, 0
while children:
    largest = max(largest, sum(file.bytes for file in Store(folder).files(KERNEL, TEMPORARY)))
    child, status = os.waitpid(-1, os.WNOHANG)
    if child:
        role, receive = children.pop(child)
        totals[role] += int(os.read(receive, 20) or 0)
        failed += status != 0
print(json.dumps({"largest": largest, "failed": failed, **totals}))
"""


@pytest.fixture
def store(tmp_path):
    """A store of at most 64 entries."""
    return Store(tmp_path / "cache", LIMIT)


def name(number):
    return f"kernel-{number:032x}.kernel"


def files(folder):
    return {path.name for path in folder.iterdir()}


def age(path, days):
    """Say that a file was used last so many days ago."""
    os.utime(path, times=(time.time(), time.time() - days * DAY))


def fill(folder, numbers, bytes_each=1024):
    """Save entries, each used a day after the one before, and the last one yesterday."""
    for number in numbers:
        Store(folder).save(name(number), bytes(bytes_each - HEADER_BYTES))
        age(folder / name(number), len(numbers) - number)


def used_days_ago(path):
    return (time.time() - path.stat().st_mtime) / DAY


def test_the_kernels_unused_for_the_longest_time_go_first(store):
    fill(store.folder, range(60))
    assert store.load(name(3)) == PAYLOAD  # so it is used
    store.save(name(99), PAYLOAD)
    left = {name(3), *(name(number) for number in range(60 - KEPT + 1, 60))}
    assert files(store.folder) == {*left, name(99)}


def test_a_process_stays_within_the_limit(store):
    for number in range(300):
        store.save(name(number), PAYLOAD)
        assert sum(file.bytes for file in store.files(KERNEL)) <= LIMIT
        assert store.load(name(number)) == PAYLOAD
    assert len(store.files(KERNEL)) == KEPT + 1


def test_small_entries_do_not_list_the_folder_each_time(tmp_path, monkeypatch):
    looks, prune = [], disk_folder.prune
    monkeypatch.setattr(disk_folder, "prune", lambda *given: [looks.append(given), prune(*given)])
    store = Store(tmp_path / "cache")
    for number in range(200):
        store.save(name(number), PAYLOAD)
    assert looks == [(store.folder, store.limit)]


@pytest.mark.parametrize(("days", "written"), [(2, 1), (0.5, 0), (-2, 1)])
def test_a_load_notes_the_day(store, monkeypatch, days, written):
    """At most one write a day; a date in the future, of a clock that was wrong, is mended."""
    calls, utime = [], os.utime
    fill(store.folder, [0])
    age(store.folder / name(0), days)
    with monkeypatch.context() as patch:
        patch.setattr(os, "utime", lambda *given: [calls.append(given), utime(*given)])
        for _ in range(3):
            assert store.load(name(0)) == PAYLOAD
    assert len(calls) == written
    assert used_days_ago(store.folder / name(0)) == pytest.approx(0 if written else days, abs=0.1)


def test_a_day_that_cannot_be_noted_costs_nothing(store, monkeypatch, caplog):
    def refuse(*_):
        raise PermissionError("not yours")

    fill(store.folder, [0])
    age(store.folder / name(0), 9)
    monkeypatch.setattr(os, "utime", refuse)
    assert store.load(name(0)) == PAYLOAD
    assert caplog.records == []


def test_foreign_files_stay(store):
    """However old and large they are, and whatever resembles a name of the cache."""
    fill(store.folder, range(60))
    digits = "0123456789abcdef" * 2
    foreign = [
        "notes.txt",
        "function.kernel",
        f"{digits[1:]}.kernel",
        f"{digits}.KERNEL",
        f"{digits}.kernel.old",
        f"my kernel-{digits}.kernel",
        f"{digits}.kernel\n",
        f"{digits}.kernel.tmp",
        f"{digits}.kernel.{digits}.tmp",
        f"{digits}.choice",
        "paper.tmp",
    ]
    (store.folder.parent / "target").write_bytes(bytes(LIMIT))
    for file in foreign:
        (store.folder / file).write_bytes(bytes(LIMIT))
        age(store.folder / file, 999)
    (store.folder / name(77)).symlink_to(store.folder.parent / "target")
    (store.folder / name(78) / "folder").mkdir(parents=True)
    store.save(name(99), PAYLOAD)
    assert len(files(store.folder)) < 60
    store.remove(KERNEL, TEMPORARY)
    assert files(store.folder) == {*foreign, name(78)}
    assert files(store.folder.parent) == {"cache", "target"}
    assert store.remove(CHOICE) == [(f"{digits}.choice", LIMIT, pytest.approx(0, abs=time.time()))]


def test_choices_neither_count_nor_go(store):
    fill(store.folder, range(KEPT - 1))
    choice = f"{0:032x}{CHOICE}"
    (store.folder / choice).write_bytes(bytes(LIMIT))
    age(store.folder / choice, 999)
    store.save(name(99), PAYLOAD)
    assert files(store.folder) == {*map(name, range(KEPT - 1)), name(99), choice}


def test_times_count_and_go(store):
    fill(store.folder, range(KEPT - 1))
    times = f"{0:032x}{TIMES}"
    (store.folder / times).write_bytes(bytes(LIMIT))
    age(store.folder / times, 999)
    store.save(name(99), PAYLOAD)
    assert times not in files(store.folder) and name(99) in files(store.folder)


def test_what_is_too_large_to_be_loaded_goes_first(store):
    """Its bytes would count, though nobody can use them."""
    fill(store.folder, range(20))
    with open(store.folder / name(50), "xb") as file:
        file.truncate(ENTRY_BYTES + 1)
    store.save(name(99), PAYLOAD)
    assert files(store.folder) == {*map(name, range(20)), name(99)}


def test_temporary_files_that_nobody_writes_go(store):
    fill(store.folder, [0])
    old, new = (store.folder / f"{name(1)}.{digit * 16}{TEMPORARY}" for digit in "ab")
    for path, hours in ((old, 2), (new, 0.5)):
        path.write_bytes(b"half a kernel")
        age(path, hours / 24)
    store.save(name(2), PAYLOAD)
    assert files(store.folder) == {name(0), name(2), new.name}


@pytest.mark.parametrize("limit", [0, 5000])
def test_a_limit_below_an_entry(tmp_path, caplog, limit):
    """Nothing is saved; zero says that this is meant."""
    store = Store(tmp_path / "cache", limit)
    for _ in range(2):
        store.save(name(0), bytes(2000))
    assert store.load(name(0)) is None
    assert not store.folder.exists()
    warnings = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
    assert len(warnings) == (limit > 0)
    assert all("IMPLICIT_CONV_CACHE_BYTES=5000" in warning for warning in warnings)


def test_an_entry_that_could_not_be_loaded_is_not_saved(tmp_path, caplog):
    store = Store(tmp_path / "cache")
    store.save(name(0), bytes(ENTRY_BYTES - HEADER_BYTES))
    store.save(name(1), bytes(ENTRY_BYTES - HEADER_BYTES + 1))
    assert files(store.folder) == {name(0)}
    assert len(caplog.records) == 1
    assert store.damaged() == {}


def test_a_process_that_clears_the_cache_while_another_saves(store, monkeypatch, caplog):
    """Its temporary file is gone; it saves the next one."""

    def replace(*paths):
        Store(store.folder).remove(KERNEL, TEMPORARY)
        before(*paths)

    before = os.replace
    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", replace)
        store.save(name(0), PAYLOAD)
    assert files(store.folder) == set()
    store.save(name(0), PAYLOAD)
    assert store.load(name(0)) == PAYLOAD
    assert caplog.records == []


def test_files_that_vanish_while_the_folder_is_pruned(store, monkeypatch):
    """Another process removes all that goes, between the list and the first removal."""
    fill(store.folder, range(60))
    before, removed = Path.unlink, []

    def unlink(path, missing_ok=False):
        if not removed:
            removed.append(True)
            disk_folder.prune(store.folder, LIMIT)
        before(path, missing_ok=missing_ok)

    monkeypatch.setattr(Path, "unlink", unlink)
    store.save(name(99), PAYLOAD)
    left = {name(number) for number in range(60 - KEPT, 60)}
    assert files(store.folder) == {*left, name(99)}


def test_files_that_vanish_while_the_folder_is_listed(store, monkeypatch):
    @contextmanager
    def scandir(folder):
        with before(folder) as entries:
            found = [*entries]
            for number in range(50):
                (store.folder / name(number)).unlink()
            yield found

    fill(store.folder, range(60))
    before = os.scandir
    with monkeypatch.context() as patch:
        patch.setattr(os, "scandir", scandir)
        assert len(disk_folder.files_in(store.folder, KERNEL)) == 10


@sampled
def test_processes_that_write_prune_and_clear_beside_readers(tmp_path):
    folder, limit = tmp_path / "cache", 256 << 10
    folder.mkdir(0o700)
    (folder / "notes.txt").write_bytes(bytes(limit))
    found = json.loads(output_of(CROWD, folder, limit, count(200, 10_000)))
    assert found["failed"] == 0
    assert limit // 2 < found["largest"] <= limit
    assert min(found[role] for role in ("write", "read", "clear")) > 0
    assert (folder / "notes.txt").stat().st_size == limit
    assert Store(folder).damaged() == {}
    assert Store(folder).files(TEMPORARY) == []


def test_a_name_says_whether_its_kernel_is_of_the_present_sources(tmp_path, monkeypatch):
    store = Store(tmp_path / "cache")
    with monkeypatch.context() as patch:
        patch.setattr(sources, "kernels_hash", lambda: "0" * 64)
        store.save(sources.kernel_name("function", "key"), PAYLOAD)
    store.save(f"function-{'0' * 32}.kernel", PAYLOAD)  # of a version that had shorter names
    present = sources.kernel_name("function", "key")
    store.save(present, PAYLOAD)
    assert [file.name for file in store.files(KERNEL) if sources.is_present(file)] == [present]
    assert len(store.files(KERNEL)) == 3

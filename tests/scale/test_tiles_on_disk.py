"""Tiles of outputs on disk: room is reserved first, and a call that was stopped is gone on with."""

import errno
import logging
import mmap
import os
import re
import signal
import stat
import subprocess
import sys

import numpy as np
import pytest
from processes import output_of, run_python

import implicit_conv
from implicit_conv import plan_tiles, tiles
from implicit_conv.errors import PlanError, ShapeError, TileError
from implicit_conv.scale import mapped

OPTIONS = {"padding": 1, "memory": "30 kB", "progress": False, "precision": "strict"}
SHAPE = (1, 200, 64)


def problem():
    x = np.random.default_rng(0).standard_normal(SHAPE).astype(np.float32)
    w = np.random.default_rng(1).standard_normal((2, 1, 3, 3)).astype(np.float32)
    options = {key: OPTIONS[key] for key in ("padding", "precision")}
    return x, w, implicit_conv.conv2d(x, w, **options)


def sparse(folder, shape, dtype=np.float32):
    """A memory-mapped file, of which the disk has no block yet."""
    return np.lib.format.open_memmap(folder / "y.npy", "w+", dtype, shape)


def allocated(path):
    return os.stat(path).st_blocks * 512


@pytest.fixture
def small_disk(tmp_path):
    """A folder on a disk of 1 MB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", folder]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        pytest.skip("there is no mount here")
    if done.returncode:
        pytest.skip(f"a disk cannot be mounted here: {done.stderr.strip()}")
    yield folder
    subprocess.run(["umount", "-l", folder], check=True)


FULL = """
import os, sys
import numpy as np
from implicit_conv import tiles
from implicit_conv.errors import TileError

folder, kind, start = sys.argv[1], sys.argv[2], int(sys.argv[3])
shape = (1, 2000, 500)
name = os.path.join(folder, "y")
if kind == "open_memmap":
    out = np.lib.format.open_memmap(name, "w+", np.float32, shape)
elif kind == "memmap":
    out = np.memmap(name, np.float32, "w+", shape=shape)
elif kind == "slice":
    out = np.memmap(name, np.float32, "w+", shape=(3, 1, 2000, 700))[1, :, :, 100:600]
elif kind == "view":
    out = np.asarray(np.memmap(name, np.float32, "w+", shape=shape))[:, ::-1]
elif kind == "nameless":
    out = np.memmap(name, np.float32, "w+", shape=shape)
    os.remove(name)
x, w = np.ones(shape, np.float32), np.ones((1, 1, 3, 3), np.float32)
try:
    tiles(x, w, padding=1, out=out, memory="1 MB", start=start)
except TileError as error:
    assert isinstance(error.__cause__, OSError), error
    disk = os.statvfs(folder)  # a load of `out` would take room, too
    print(disk.f_bavail * disk.f_bsize, error)
"""


@pytest.mark.parametrize("kind", ["open_memmap", "memmap", "slice", "view", "nameless"])
def test_a_full_disk_is_an_error_before_anything_is_written(small_disk, kind):
    """The process would end by SIGBUS at the first page without room."""
    found = output_of(FULL, small_disk, kind, 3)
    for part in ("No space left", "out needs", "start=3 does the rest"):
        assert part.lower() in found.lower()
    assert int(found.split()[0]) > 900_000 or kind == "nameless"


def test_room_is_reserved_for_the_bytes_of_a_slice_alone(tmp_path):
    whole = sparse(tmp_path, (40, 1, 200, 64))
    x, w, y = problem()
    seen = []
    before = allocated(tmp_path / "y.npy")

    def note(*_):
        seen.append(allocated(tmp_path / "y.npy") - before)

    tiles(x, w[:1], out=whole[7], **{**OPTIONS, "progress": note})
    assert whole[7].nbytes <= seen[0] == seen[-1] < 2 * whole[7].nbytes
    np.testing.assert_allclose(whole[7], y[:1], 1e-4, 1e-5)  # one filter has other kernels


@pytest.mark.parametrize("unsupported", [errno.EOPNOTSUPP, errno.EINVAL])
def test_where_files_cannot_be_reserved_all_pages_are_touched(tmp_path, monkeypatch, unsupported):
    def refuse(*_):
        raise OSError(unsupported, "unsupported")

    x, w, y = problem()
    out = sparse(tmp_path, y.shape)
    monkeypatch.setattr(os, "posix_fallocate", refuse)
    mapped.reserve(out)
    os.sync()
    assert allocated(tmp_path / "y.npy") >= out.nbytes
    assert not out.any()
    np.testing.assert_array_equal(tiles(x, w, out=out, **OPTIONS), y)


def test_where_nothing_can_be_reserved_a_warning_says_so(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(mapped, "_allocated", lambda _: False)
    monkeypatch.setattr(mapped, "_populated", lambda _: False)
    x, w, y = problem()
    with caplog.at_level(logging.WARNING, "implicit_conv"):
        tiles(x, w, out=sparse(tmp_path, y.shape), **OPTIONS)
    assert "a full disk would end the process with SIGBUS" in caplog.text


def test_what_is_written_stays_where_room_is_reserved(tmp_path):
    out = sparse(tmp_path, (1000, 1000))
    out[...] = np.random.default_rng(0).random(out.shape)
    before = out.copy()
    mapped.reserve(out)
    mapped.reserve(out[3:7, ::-2])
    np.testing.assert_array_equal(out, before)


def test_arrays_in_memory_and_private_copies_have_no_place(tmp_path):
    np.zeros(100).tofile(tmp_path / "x")
    private = np.memmap(tmp_path / "x", np.float64, "c")
    for x in (np.zeros(3), private, private[2:], np.memmap(tmp_path / "x", np.float64, "r").copy()):
        assert mapped.mapped(x) is None
    shared = mmap.mmap(-1, 4096)
    place = mapped.mapped(np.frombuffer(shared, np.float32)[4::-2])
    assert (place.start, place.stop) == (0, 20)


TRUNCATED = """
import os, sys
import numpy as np
from implicit_conv import tiles
from implicit_conv.errors import TileError

name, which = sys.argv[1:]
shape = (1, 4000, 500)
arrays = {each: np.memmap(f"{name}.{each}", np.float32, "w+", shape=shape) for each in ("x", "y")}
os.truncate(f"{name}.{which}", 5000)
try:
    tiles(arrays["x"], np.ones((1, 1, 3, 3), np.float32), padding=1, out=arrays["y"])
except TileError as error:
    print(error)
"""


@pytest.mark.parametrize("which", ["x", "y"])
def test_a_file_that_is_shorter_than_its_array_is_an_error(tmp_path, which):
    """The process would end by SIGBUS."""
    found = output_of(TRUNCATED, tmp_path / "file", which)
    assert f"file.{which} of {'x' if which == 'x' else 'out'} has 5000 bytes" in found
    assert "ends at byte 8000000" in found and "start=0 does the rest" in found


LARGE = """
import re, resource, sys
import numpy as np
from implicit_conv import conv2d, tiles

name, room, rows = sys.argv[1], 60_000_000, 45_000
x, y = (np.memmap(f"{name}.{each}", np.float32, "w+", shape=(1, rows, 1000)) for each in "xy")
for start in range(0, rows, 5000):
    x[0, start : start + 5000] = np.random.default_rng(start).random((5000, 1000))
assert x.nbytes == 3 * room
w = np.random.default_rng(1).random((1, 1, 5, 5), dtype=np.float32)
given = {"padding": 2, "precision": "strict"}
tiles(x[:, :2000], w, out=y[:, :2000], memory="4 MB", **given)  # compiles
data = int(re.search(r"VmData:\\s*(\\d+)", open("/proc/self/status").read())[1]) * 1024
resource.setrlimit(resource.RLIMIT_DATA, (data + room, resource.RLIM_INFINITY))
try:
    np.array(x)
except MemoryError:
    tiles(x, w, out=y, memory="20 MB", **given)
part = np.array(x[:, 22_000:23_000])
np.testing.assert_array_equal(y[:, 22_002:22_998], conv2d(part, w, **given)[:, 2:-2])
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux limits these mappings")
def test_a_file_may_be_three_times_as_large_as_memory(tmp_path):
    output_of(LARGE, tmp_path / "file")


KILLED = """
import os, signal, sys
import numpy as np
from implicit_conv import tiles

folder, kind, last, start = sys.argv[1:]
random = np.random.default_rng(0)
x = random.standard_normal((1, 200, 64)).astype(np.float32)
w = np.random.default_rng(1).standard_normal((2, 1, 3, 3)).astype(np.float32)
seen = []

def progress(done, count):
    seen.append(done)
    if done == int(last):
        os.kill(os.getpid(), signal.SIGKILL)

options = {"padding": 1, "memory": "30 kB", "precision": "strict", "progress": progress}
if kind == "zarr":
    import zarr

    name = os.path.join(folder, "y.zarr")
    if not os.path.exists(name):
        zarr.create_array(name, shape=(2, 200, 64), chunks=(2, 7, 64), dtype="f4")
    out = zarr.open(name, mode="r+")
else:
    name = os.path.join(folder, "y.npy")
    if not os.path.exists(name):
        np.lib.format.open_memmap(name, "w+", np.float32, (3, 2, 200, 64))
    out = np.load(name, mmap_mode="r+")
    out = out[1] if kind == "slice" else out.reshape(3 * 2, 200, 64)[4:]
start = int(start) if start.isdigit() else start
tiles(x, w, out=out, start=start, **options)
np.save(os.path.join(folder, "found.npy"), np.asarray(out[...]))
print(seen[0] if seen else None, seen[-1] if seen else None)
"""


def killed(folder, kind, last, start="resume"):
    found = run_python("-c", KILLED, folder, kind, last, start)
    assert found.returncode == -signal.SIGKILL, found.stderr


def records(folder):
    return [path for path in folder.rglob("*") if ".tiles" in path.name]


@pytest.mark.parametrize("kind", ["memmap", "slice", "zarr"])
def test_a_killed_call_is_gone_on_with_and_has_the_same_bits(tmp_path, kind):
    if kind == "zarr":
        pytest.importorskip("zarr", minversion="3", reason="zarr 3 keeps records")
    *_, whole = problem()
    killed(tmp_path, kind, 4)
    killed(tmp_path, kind, 9)
    assert len(records(tmp_path)) == 1
    first, last = output_of(KILLED, tmp_path, kind, -1, "resume").split()
    # The tile after the last that was counted may be written when a process is killed.
    assert 10 <= int(first) <= 11
    assert int(last) > 12
    np.testing.assert_array_equal(np.load(tmp_path / "found.npy"), whole)
    assert records(tmp_path) == []
    first, _ = output_of(KILLED, tmp_path, kind, -1, "resume").split()
    assert first == "1", "a call that has ended leaves nothing to go on from"


def stopped(folder, last=5, **changes):
    """An output of which some tiles are written; the arguments of that call."""
    x, w, whole = problem()
    out = sparse(folder, whole.shape)
    given = {**OPTIONS, "out": out, **changes}

    def stop(done, _):
        if done == last:
            raise RuntimeError("stopped")

    with pytest.raises(TileError, match="stopped"):
        tiles(x, w, **{**given, "progress": stop})
    return x, w, whole, given


def counts(x, w, given, **changes):
    """What a later call counts."""
    seen = []
    tiles(x, w, **{**given, "progress": lambda done, _: seen.append(done), **changes})
    return seen


def test_an_output_that_was_made_anew_is_computed_anew(tmp_path, caplog):
    x, w, whole, given = stopped(tmp_path)
    given["out"] = sparse(tmp_path, whole.shape)  # zeros again
    with caplog.at_level(logging.WARNING, "implicit_conv"):
        assert counts(x, w, given, start="resume")[0] == 1
    assert "tile 0 is not in the output as it was written" in caplog.text
    np.testing.assert_array_equal(given["out"], whole)


def test_a_tile_that_was_lost_is_computed_again(tmp_path, caplog):
    """As pages are that a power failure kept from the disk."""
    x, w, whole, given = stopped(tmp_path)
    plan = plan_tiles(x, w, **{key: given[key] for key in ("padding", "memory", "out")})
    given["out"][tuple(slice(*span) for span in list(plan.places())[2])][0, 1, 3:] = 0
    with caplog.at_level(logging.WARNING, "implicit_conv"):
        assert counts(x, w, given, start="resume")[0] == 3
    np.testing.assert_array_equal(given["out"], whole)


@pytest.mark.parametrize(
    ("named", "change"),
    [
        ("w", {"w": 1}),
        ("bias", {"bias": np.ones(2, np.float32)}),
        ("padding", {"padding": ((1, 1), (0, 2))}),
        ("options", {"padding_mode": "reflect"}),
        ("x, padding", {"x": np.ones((1, 202, 64), np.float32), "padding": ((0, 0), (1, 1))}),
        (r"tiles \(memory, threads\)", {"memory": "60 kB"}),
        ("operator", {"operator": "conv_transpose2d", "w": 2}),
    ],
)
def test_the_tiles_of_another_computation_are_refused(tmp_path, named, change):
    x, w, _, given = stopped(tmp_path)
    change = dict(change)
    x = change.pop("x", x)
    w = {0: w, 1: w + 1, 2: np.ones((1, 2, 3, 3), np.float32)}[change.pop("w", 0)]
    with pytest.raises(PlanError, match=f"another computation: .*{named}.*start=0.*tile 5"):
        tiles(x, w, **{**given, **change, "start": "resume"})
    assert len(records(tmp_path)) == 1, "and what is known stays"
    if "memory" not in change:
        tiles(x, w, **{**given, **change})
        assert records(tmp_path) == []


def test_tiles_before_a_start_of_the_callers_are_taken_on_trust(tmp_path):
    x, w, whole, given = stopped(tmp_path)
    with pytest.raises(TileError):
        tiles(x, w, **{**given, "start": np.int64(5), "progress": lambda *_: 1 / 0})
    assert counts(x, w, given, start="resume")[0] >= 7
    np.testing.assert_array_equal(given["out"], whole)


def test_a_line_that_was_cut_off_is_no_tile(tmp_path, caplog):
    x, w, whole, given = stopped(tmp_path)
    (record,) = records(tmp_path)
    record.write_bytes(record.read_bytes()[:-4])
    first = counts(x, w, given, start="resume")[0]
    assert 5 <= first <= 6
    assert caplog.text == ""
    np.testing.assert_array_equal(given["out"], whole)


NONE = 0, r"its first line is no JSON of a computation; .* from tile 0 on"
# What a record becomes, of a head and lines of tiles; the tile from which on all are computed; and
# what is said.
DAMAGES = {
    "empty": lambda head, lines: (b"", *NONE),
    "half of the head": lambda head, lines: (head[: len(head) // 2], *NONE),
    "no line's end": lambda head, lines: (head, 0, None),
    "bytes that are no text": lambda head, lines: (b"\xff\xfe\x00" * 20, *NONE),
    "zeros, as of a lost page": lambda head, lines: (b"\0" * 400, *NONE),
    "a list": lambda head, lines: (b"[]\n", *NONE),
    "a number": lambda head, lines: (b"12345678\n", *NONE),
    "a number of a million digits": lambda head, lines: (b"1" * 10**6 + b"\n", *NONE),
    "a tower of lists": lambda head, lines: (b"[" * 10**5 + b"\n", *NONE),
    "numbers for texts": lambda head, lines: (b'{"x": 1}\n', *NONE),
    "no head": lambda head, lines: (b"\n".join([*lines, b""]), *NONE),
    "two heads": lambda head, lines: (b"\n".join([head, head, *lines, b""]), 0, "its line 2 is no"),
    "ends of another system": lambda head, lines: (
        b"\r\n".join([head, *lines, b""]),
        0,
        "its line 2 is no checksum",
    ),
    "zeros behind two tiles": lambda head, lines: (
        b"\n".join([head, *lines[:2], b"\0" * 8, *lines[3:], b""]),
        2,
        "its line 4 is no checksum of a tile; .* from tile 2 on",
    ),
    "letters of another case": lambda head, lines: (
        b"\n".join([head, lines[0], b"DEADBEEF", b""]),
        1,
        "its line 3 is no checksum",
    ),
    "more lines than tiles": lambda head, lines: (
        b"\n".join([head, *lines, *[b"00000000"] * 500, b""]),
        len(lines),
        "is not in the output as it was written",
    ),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_tiles_behind_the_damage_of_a_record_are_computed_again(tmp_path, caplog, damage):
    x, w, whole, given = stopped(tmp_path)
    (record,) = records(tmp_path)
    head, *lines, rest = record.read_bytes().split(b"\n")
    assert rest == b""
    assert len(lines) >= 5
    content, first, said = DAMAGES[damage](head, lines)
    record.write_bytes(content)
    assert counts(x, w, given, start="resume")[0] == first + 1
    assert len(caplog.records) == (said is not None)
    assert said is None or re.search(said, caplog.text)
    np.testing.assert_array_equal(given["out"], whole)
    assert records(tmp_path) == []


def test_a_folder_in_the_place_of_a_record(tmp_path, caplog):
    x, w, whole, given = stopped(tmp_path)
    (record,) = records(tmp_path)
    record.unlink()
    record.mkdir()
    assert counts(x, w, given, start="resume")[0] == 1
    assert f"{record} is damaged: it cannot be read" in caplog.text
    assert f"{record} cannot be kept" in caplog.text
    np.testing.assert_array_equal(given["out"], whole)


def test_random_damage_of_a_record_costs_no_bit(tmp_path):
    """Bytes are changed, dropped, doubled or drawn. Where the head is still one of a computation,
    but not of this one, that is said; what its checksums say of tiles is compared with these.
    """
    x, w, whole, given = stopped(tmp_path)
    (record,) = records(tmp_path)
    good, written = record.read_bytes(), np.array(given["out"])
    refused = 0
    for seed in range(60):
        rng = np.random.default_rng(seed)
        content = bytearray(good)
        for _ in range(rng.integers(1, 6)):
            place = int(rng.integers(len(content) or 1))
            drawn = rng.integers(0, 256, int(rng.integers(1, 30)), np.uint8).tobytes()
            end = place + int(rng.choice([0, 1, len(drawn), len(good)]))
            content[place:end] = drawn if rng.random() < 0.7 else b""
        record.write_bytes(content)
        given["out"][...] = written
        try:
            tiles(x, w, **{**given, "progress": False, "start": "resume"})
        except PlanError as error:
            assert "another computation" in str(error)
            refused += 1
            continue
        np.testing.assert_array_equal(given["out"], whole)
        assert records(tmp_path) == []
    assert refused < 30


def test_a_record_is_on_the_disk_before_it_has_its_name(tmp_path, monkeypatch):
    """After a power failure a file whose name came first may be empty."""
    done = []
    for name in ("fsync", "replace"):
        own = getattr(os, name)

        def noted(*args, name=name, own=own):
            place = os.fstat(args[0]) if name == "fsync" else None
            done.append((name, stat.S_ISDIR(place.st_mode)) if place else name)
            return own(*args)

        monkeypatch.setattr(os, name, noted)
    stopped(tmp_path)
    folders = hasattr(os, "O_DIRECTORY")
    assert done == [("fsync", False), "replace", *[("fsync", True)] * folders]


@pytest.mark.parametrize("code", [errno.EINVAL, errno.EIO])
def test_a_file_system_that_cannot_wait_for_its_disk(tmp_path, monkeypatch, caplog, code):
    def refuse(*_):
        raise OSError(code, "refused")

    monkeypatch.setattr(os, "fsync", refuse)
    stopped(tmp_path)
    kept = code == errno.EINVAL
    assert len(records(tmp_path)) == kept
    assert ("cannot be kept" in caplog.text) != kept


def test_resume_needs_an_output_on_disk(tmp_path):
    x, w, whole = problem()
    for out in (None, np.empty_like(whole)):
        with pytest.raises(ShapeError, match=r"'resume' where out is a numpy\.memmap or"):
            tiles(x, w, **{**OPTIONS, "out": out, "start": "resume"})
    with pytest.raises(ShapeError, match="start is 'again'"):
        tiles(x, w, **{**OPTIONS, "out": sparse(tmp_path, whole.shape), "start": "again"})


@pytest.mark.parametrize("failing", ["_replace", "_append"])
def test_a_record_that_cannot_be_kept_is_said_once(tmp_path, caplog, monkeypatch, failing):
    from implicit_conv.scale import record

    def refuse(*_):
        raise PermissionError(errno.EACCES, "refused")

    x, w, whole = problem()
    monkeypatch.setattr(record, failing, refuse)
    with caplog.at_level(logging.WARNING, "implicit_conv"):
        out = tiles(x, w, **{**OPTIONS, "out": sparse(tmp_path, whole.shape)})
    np.testing.assert_array_equal(out, whole)
    assert caplog.text.count("cannot be kept") == 1
    assert records(tmp_path) == []

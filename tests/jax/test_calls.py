"""What XLA calls: from several threads, from executables of other processes, on several devices."""

import gc
import os
import subprocess
import sys
import threading
from functools import partial

import numpy as np
import pytest

jax = pytest.importorskip("jax", minversion="0.5", reason="pip install '.[jax]'")

import jax.numpy as jnp  # noqa: E402
from jax import lax  # noqa: E402
from jax_cases import OURS, arrays  # noqa: E402

import implicit_conv  # noqa: E402
import implicit_conv.jax as door  # noqa: E402
from implicit_conv.jax.lowering import TARGET, target  # noqa: E402
from implicit_conv.operators.programs import Buffer, buffer_arrays, make_words  # noqa: E402

NHWC = ("NHWC", "HWIO", "NHWC")
conv = partial(
    door.conv_general_dilated, window_strides=(1, 1), padding="SAME", dimension_numbers=NHWC
)
other = partial(
    lax.conv_general_dilated, window_strides=(1, 1), padding="SAME", dimension_numbers=NHWC
)


def called(x, w, y_shape, key, dtype="float32"):
    """Our call, with a key of its own."""
    result = jax.ffi.ffi_call(TARGET, jax.ShapeDtypeStruct(y_shape, jnp.dtype(dtype)))
    return jax.jit(lambda x, w: result(x, w, plan=np.int64(key)))(x, w)


def key_of(x, w):
    """The key of the program of `conv`."""
    text = jax.jit(conv).lower(x, w).as_text()
    return int(text.split("plan = ")[1].split(" : ")[0])


def test_a_key_that_this_process_does_not_know_is_an_error():
    target()
    x, w = arrays((1, 8, 8, 32), (3, 3, 32, 32))
    with pytest.raises(Exception, match="implicit_conv has no plan for this convolution"):
        called(x, w, (1, 8, 8, 32), 123)


@pytest.mark.parametrize(
    ("x_shape", "y_shape", "dtype"),
    [
        ((1, 8, 7, 32), (1, 8, 8, 32), "float32"),
        ((1, 8, 8, 32), (1, 8, 8, 33), "float32"),
        ((1, 8, 8, 32), (8, 8, 32), "float32"),
        ((1, 8, 8, 32), (1, 8, 8, 32), "float64"),
    ],
    ids=["x", "y", "rank", "dtype"],
)
def test_buffers_that_a_program_is_not_for_are_refused(x_shape, y_shape, dtype):
    x, w = arrays((1, 8, 8, 32), (3, 3, 32, 32))
    key = key_of(x, w)
    (wrong,) = arrays(x_shape)
    with pytest.raises(Exception, match="buffers differ"):
        called(wrong, w, y_shape, key, dtype)
    np.testing.assert_array_equal(called(x, w, (1, 8, 8, 32), key), conv(x, w))


def test_other_arguments_are_refused():
    x, w = arrays((1, 8, 8, 32), (3, 3, 32, 32))
    key = key_of(x, w)
    result = jax.ffi.ffi_call(TARGET, jax.ShapeDtypeStruct((1, 8, 8, 32), jnp.float32))
    for operands, attributes in (
        ((x,), {"plan": np.int64(key)}),
        ((x, w, w), {"plan": np.int64(key)}),
        ((x, w), {}),
        ((x, w), {"plan": np.int32(7)}),
        ((x, w), {"plan": np.int64(key), "more": np.int64(1)}),
    ):
        with pytest.raises(Exception, match="buffers differ"):
            jax.jit(lambda *each, attributes=attributes: result(*each, **attributes))(*operands)


def test_many_programs_are_found():
    """The table of keys grows, and keys whose places are taken follow each other."""
    x, w = arrays((1, 8, 8, 32), (3, 3, 32, 32))
    wanted = conv(x, w)
    plan = implicit_conv.plan_conv2d(
        x.shape, (3, 3, 32, 32), padding=1, layout="NHWC", weight_layout="RSCK"
    )
    buffers = tuple(Buffer("float32", array.shape) for array in (x, w, wanted))
    views = buffer_arrays(buffers)
    keys = [*range(1, 200), *range(1 << 20, 200 << 20, 1 << 20), -5]
    for key in keys:
        target().keep(key, make_words(plan, [views]), buffers)
    for key in (1, 199, 1 << 20, 199 << 20, -5):
        np.testing.assert_array_equal(called(x, w, wanted.shape, key), wanted)
    with pytest.raises(Exception, match="has no plan"):
        called(x, w, wanted.shape, 200 << 20)


def test_several_threads_call_at_once():
    operands = [arrays((2, 20, 20, 16), (3, 3, 16, 16), seed=seed) for seed in range(4)]
    compiled = jax.jit(conv)
    with implicit_conv.config(num_threads=2):
        wanted = [np.asarray(compiled(*given)) for given in operands]
    errors = []

    def run(given, exact):
        try:
            for _ in range(50):
                np.testing.assert_array_equal(compiled(*given), exact)
        except Exception as error:  # told below
            errors.append(error)

    pairs = zip(operands, wanted, strict=True)
    threads = [threading.Thread(target=run, args=pair) for pair in pairs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors


def test_calls_of_one_executable_run_at_once():
    """XLA runs convolutions that do not depend on each other on several of its threads."""
    x, *filters = arrays((1, 24, 24, 16), *[(3, 3, 16, 16)] * 6)

    def many(f, x):
        return sum(f(jnp.tanh(f(x, w)), w) for w in filters)

    ours = jax.jit(partial(many, conv))
    first = ours(x)
    np.testing.assert_allclose(first, jax.jit(partial(many, other))(x), rtol=0, atol=1e-3)
    for _ in range(20):
        np.testing.assert_array_equal(ours(x), first)


def test_plans_that_were_forgotten_do_not_take_programs_with_them():
    x, w = arrays((1, 9, 9, 8), (3, 3, 8, 8))
    compiled = jax.jit(conv)
    y = np.asarray(compiled(x, w))
    implicit_conv.clear_plan_cache()
    gc.collect()
    np.testing.assert_array_equal(compiled(x, w), y)


def test_donated_buffers():
    x, w = arrays((1, 9, 9, 8), (3, 3, 8, 8))
    wanted = np.asarray(conv(x, w))
    compiled = jax.jit(lambda x, w: conv(x, w) + 1, donate_argnums=0)
    np.testing.assert_allclose(compiled(x + 0, w), wanted + 1, rtol=0, atol=1e-6)


def test_results_do_not_depend_on_what_was_in_their_memory():
    x, w = arrays((1, 9, 9, 8), (3, 3, 8, 8))
    compiled = jax.jit(conv)
    wanted = np.asarray(compiled(x, w))
    for _ in range(20):
        garbage = jnp.full(wanted.shape, jnp.nan) + 1
        del garbage
        np.testing.assert_array_equal(compiled(x, w), wanted)


def test_what_is_exported_is_jaxs():
    x, w = arrays((1, 9, 9, 8), (3, 3, 8, 8))
    from jax import export  # which needs absl in old versions

    exported = export.export(jax.jit(conv))(x, w)
    assert OURS not in exported.mlir_module()
    np.testing.assert_allclose(exported.call(x, w), conv(x, w), rtol=0, atol=1e-5)


def test_callers_of_other_platforms_get_jaxs():
    x, w = arrays((1, 9, 9, 8), (3, 3, 8, 8))
    traced = jax.jit(conv).trace(x, w)
    assert OURS not in traced.lower(lowering_platforms=("cuda",)).as_text()


def test_what_is_called_with_each_number_of_threads():
    x, w = arrays((1, 30, 30, 32), (3, 3, 32, 32))
    keys = set()
    for threads in (1, 2):
        jax.clear_caches()
        with implicit_conv.config(num_threads=threads):
            keys.add(key_of(x, w))
            np.testing.assert_allclose(conv(x, w), other(x, w), rtol=0, atol=1e-3)
    assert len(keys) == 2
    jax.clear_caches()


CACHED = """
import sys, jax, jax.numpy as jnp
jax.config.update("jax_compilation_cache_dir", sys.argv[1])
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
hits = []
jax.monitoring.register_event_listener(lambda name, **_: hits.append(name))
from implicit_conv.jax import conv_general_dilated
f = jax.jit(lambda x, w: conv_general_dilated(x, w, (1, 1), "SAME"))
x, w = jnp.arange(256.0).reshape(1, 1, 16, 16), jnp.ones((1, 1, 3, 3))
assert "implicit_conv" in f.lower(x, w).as_text()
print(float(f(x, w)[0, 0, 1, 1]), sum("cache_hits" in name for name in hits))
"""


def run(text, *arguments, **environment):
    """The output of another process."""
    command = [sys.executable, "-c", text, *map(str, arguments)]
    folder = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONPATH": folder, **environment}
    found = subprocess.run(
        command, capture_output=True, text=True, env=environment, timeout=200, check=False
    )
    assert not found.returncode, found.stderr
    return found.stdout.split()


@pytest.mark.slow
def test_executables_that_jax_kept_on_disk_run_in_another_process(tmp_path):
    """A process lowers what it runs before JAX looks for an executable on disk, so that the program
    is there.
    """
    first, second = (run(CACHED, tmp_path) for _ in range(2))
    assert float(first[0]) == float(second[0]) == 9 * 17
    assert (int(first[1]), int(second[1]) > 0) == (0, True)


SERIALIZED = """
import pickle, sys, jax, jax.numpy as jnp
from jax.experimental import serialize_executable
from implicit_conv.jax import conv_general_dilated
from implicit_conv.jax.lowering import target
x, w = jnp.arange(256.0).reshape(1, 1, 16, 16), jnp.ones((1, 1, 3, 3))
if sys.argv[2] == "save":
    f = jax.jit(lambda x, w: conv_general_dilated(x, w, (1, 1), "SAME"))
    pickle.dump(serialize_executable.serialize(f.lower(x, w).compile()), open(sys.argv[1], "wb"))
else:
    target()
    try:
        f = serialize_executable.deserialize_and_load(*pickle.load(open(sys.argv[1], "rb")))
        f(x, w).block_until_ready()
    except Exception as error:
        print(error)
"""


@pytest.mark.slow
def test_an_executable_that_is_loaded_without_its_plan_tells_so(tmp_path):
    run(SERIALIZED, tmp_path / "executable", "save")
    found = " ".join(run(SERIALIZED, tmp_path / "executable", "load"))
    assert "implicit_conv has no plan for this convolution in this process" in found


DEVICES = """
import jax, jax.numpy as jnp, numpy as np
from functools import partial
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
import implicit_conv.jax as door
conv = partial(door.conv_general_dilated, window_strides=(1, 1), padding="SAME")
other = partial(lax.conv_general_dilated, window_strides=(1, 1), padding="SAME")
rng = np.random.default_rng(0)
x = jnp.asarray(rng.standard_normal((4, 3, 8, 8)), jnp.float32)
w = jnp.asarray(rng.standard_normal((5, 3, 3, 3)), jnp.float32)
wanted = other(x, w)
close = partial(np.testing.assert_allclose, rtol=0, atol=1e-4)
mesh = Mesh(np.array(jax.devices()), ("n",))
divided = jax.device_put(x, NamedSharding(mesh, P("n")))
whole = jax.device_put(w, NamedSharding(mesh, P()))
f = jax.jit(conv)
y = f(divided, whole)
close(y, wanted)
assert [shard.data.shape[0] for shard in y.addressable_shards] == [2, 2]
print(f.lower(divided, whole).as_text().count("@implicit_conv("))
try:
    from jax import shard_map
except ImportError:
    from jax.experimental.shard_map import shard_map
g = jax.jit(shard_map(conv, mesh=mesh, in_specs=(P("n"), P()), out_specs=P("n")))
close(g(divided, whole), wanted)
print(g.lower(divided, whole).as_text().count("@implicit_conv("))
h = jax.pmap(conv, in_axes=(0, None))
close(h(x.reshape(2, 2, 3, 8, 8), w).reshape(wanted.shape), wanted)
second = jax.jit(conv)(jax.device_put(x, jax.devices()[1]), jax.device_put(w, jax.devices()[1]))
close(second, wanted)
"""


@pytest.mark.slow
def test_several_devices():
    """XLA divides a convolution that is JAX's; what runs on each device by itself is ours."""
    options = {"XLA_FLAGS": "--xla_force_host_platform_device_count=2"}
    assert run(DEVICES, **options) == ["0", "1"]

"""Wrong calls as users of other libraries write them: the hint of the error, followed literally,
arrives in one step at the result of the right call.
"""

import ast
import re

import numpy as np
import pytest

import implicit_conv as ic

RNG = np.random.default_rng(0)


def numbers(*shape, dtype="float32"):
    return RNG.integers(0, 5, shape).astype(dtype)


NAMES = {
    **{name: getattr(ic, name) for name in ic.__all__ if "conv" in name},
    "np": np,
    "implicit_conv": ic,
    "x": numbers(1, 4, 9, 9),
    "w": numbers(8, 4, 3, 3),
    "one": numbers(4, 1, 3, 3),
    "half": numbers(8, 2, 3, 3),
    "large": numbers(8, 4, 11, 3),
    "bias": numbers(8),
    "photo": numbers(20, 24, 3, dtype="uint8"),
    "gray": numbers(20, 24),
    "signal": numbers(100),
    "stereo": numbers(100, 2, dtype="int16"),
    "sobel": np.array([[-1, 0, 1], [-2, 0, 2], [-1, 0, 1]]),
}
PLANES = "np.moveaxis(conv2d(np.moveaxis(photo, -1, 0)[:, None].astype('f4'), sobel.astype('f4')"
PLANES += "[None, None])[:, 0], 0, -1)"

WRONG = {  # call -> the right one
    # arrays
    "conv2d(photo, sobel)": PLANES,
    "conv2d(photo.tolist(), sobel.tolist())": PLANES,
    "conv2d(photo > 2, sobel)": PLANES.replace("photo,", "(photo > 2),"),
    "conv2d(gray, sobel)": "conv2d(gray[None, None], sobel.astype('f4')[None, None])[0, 0]",
    "conv2d(gray.tolist(), [[1.0, 2.0]])": (
        "conv2d(gray[None, None].astype('f8'), np.array([[[[1.0, 2.0]]]]))[0, 0]"
    ),
    "conv2d([[1, 2, 3], [4, 5, 6]], [[1, 1]])": "np.array([[3.0, 5.0], [9.0, 11.0]])",
    "conv1d(signal, np.ones(5))": "np.convolve(signal, np.ones(5), 'valid')",
    "conv1d(signal.tolist(), [1, 2, 1])": "np.convolve(signal, [1, 2, 1], 'valid')",
    "conv1d(stereo, np.ones(5, np.float32))": (
        "np.stack([np.convolve(stereo[:, c], np.ones(5), 'valid') for c in (0, 1)], 1)"
    ),
    "conv2d(x, one)": "conv2d(x, one, groups=4)",
    "conv2d(x, half)": "conv2d(x, half, groups=2)",
    "conv2d(x, w.transpose(2, 3, 1, 0))": "conv2d(x, w)",
    "conv2d(x.transpose(0, 2, 3, 1), w)": "conv2d(x, w).transpose(0, 2, 3, 1)",
    "conv2d(x, w[0])": "conv2d(x, w[:1])",
    "conv2d(x[0, :1][0], w[:, :1])": "conv2d(x[0, :1], w[:, :1])",
    "conv2d(x, w, bias[None, :, None, None])": "conv2d(x, w, bias)",
    "conv2d(x, large)": "conv2d(x, large, padding=((1, 1), (0, 0)))",
    # dtypes
    "conv2d(x, w.astype('int64'))": "conv2d(x, w)",
    "conv2d(x, w.astype('uint8'))": "conv2d(x, w)",
    "conv2d(x, w.astype('float64'))": "conv2d(x, w)",
    "conv2d(x.astype('uint32'), w)": "conv2d(x, w)",
    "conv2d(x.astype('int64'), w.astype('int64'))": "conv2d(x, w)",
    "conv2d(x.astype('uint8'), w.astype('int32'))": "conv2d(x, w)",
    "conv2d(x.astype('uint8'), w.astype('int64') * 40_000)": "conv2d(x, w * 40_000)",
    "conv2d(x.astype('uint8'), w > 2)": "conv2d(x, (w > 2).astype('f4'))",
    "conv2d(x.astype('complex128'), w.astype('int64'))": "conv2d(x, w)",
    "conv_transpose2d(x, half.transpose(1, 0, 2, 3).astype('int64')[[0, 1, 0, 1]])": (
        "conv_transpose2d(x, half.transpose(1, 0, 2, 3)[[0, 1, 0, 1]])"
    ),
    # keywords of other libraries
    "conv2d(x, w, strides=2)": "conv2d(x, w, stride=2)",
    "conv2d(x, w, window_strides=(2, 1))": "conv2d(x, w, stride=(2, 1))",
    "conv2d(x, w, pad=1)": "conv2d(x, w, padding=1)",
    "conv2d(x, w, pads=((1, 0), (0, 1)))": "conv2d(x, w, padding=((1, 0), (0, 1)))",
    "conv2d(x, w, dilation_rate=2)": "conv2d(x, w, dilation=2)",
    "conv2d(x, one, feature_group_count=4)": "conv2d(x, one, groups=4)",
    "conv2d(x.transpose(0, 2, 3, 1), w, data_format='channels_last')": (
        "conv2d(x, w).transpose(0, 2, 3, 1)"
    ),
    "conv2d(x, w, data_format='NCHW')": "conv2d(x, w)",
    "conv2d(x, w, mode='same')": "conv2d(x, w, padding='same')",
    "conv2d(x, w, mode='full')": "conv2d(x, w, padding='full')",
    "conv2d(x, w, mode='nearest')": "conv2d(x, w, padding='same', padding_mode='replicate')",
    "conv2d(x, w, mode='reflect')": "conv2d(x, w, padding='same', padding_mode='symmetric')",
    "conv2d(x, w, mode='same', boundary='wrap')": (
        "conv2d(x, w, padding='same', padding_mode='circular')"
    ),
    "conv2d(x, w, boundary='symm')": "conv2d(x, w, padding='full', padding_mode='symmetric')",
    "conv2d(x, w, mode='constant', cval=0)": "conv2d(x, w, padding='same')",
    "conv2d(x, w, threads=1)": "conv2d(x, w)",
    "conv2d(x, w, workers=1, strides=2)": "conv2d(x, w, stride=2)",
    "conv2d(x, w, kernel_size=3)": "conv2d(x, w)",
    "conv2d(x, w, act='relu')": "conv2d(x, w, activation='relu')",
    "conv2d(x, w, biass=2.0)": "conv2d(x, w, 2.0)",
    "conv2d(x, w, dtype='float64')": "conv2d(x, w, out_dtype='float64')",
    "conv3d(x[:, :, None], w[:, :, None], strides=2)": "conv2d(x, w, stride=2)[:, :, None]",
    "conv_transpose2d(x, w[:4], strides=2)": "conv_transpose2d(x, w[:4], stride=2)",
    "plan_conv2d(x.shape, w.shape, strides=2)(x, w)": "conv2d(x, w, stride=2)",
    "conv2d_weight_grad(x, x, (4, 4, 1, 1), strides=1)": "conv2d_weight_grad(x, x, (4, 4, 1, 1))",
    # words of other libraries
    "conv2d(x.transpose(0, 2, 3, 1), w, layout='channels_last')": (
        "conv2d(x, w).transpose(0, 2, 3, 1)"
    ),
    "conv2d(x, w, layout='channels_first')": "conv2d(x, w)",
    "conv2d(x[0].transpose(1, 2, 0), w, layout='HWC')": "conv2d(x, w)[0].transpose(1, 2, 0)",
    "conv3d(x[:, :, None], w[:, :, None], layout='channels_first')": "conv2d(x, w)[:, :, None]",
    "conv2d(x, w, padding='reflect')": "conv2d(x, w, padding='same', padding_mode='reflect')",
    "conv2d(x, w, padding='smae')": "conv2d(x, w, padding='same')",
    "conv2d(x, w, padding=1, padding_mode='wrap')": (
        "conv2d(x, w, padding=1, padding_mode='circular')"
    ),
    "conv2d(x, w, padding=1, padding_mode='BORDER_REFLECT_101')": (
        "conv2d(x, w, padding=1, padding_mode='reflect')"
    ),
    "conv2d(x, w, activation='rleu')": "conv2d(x, w, activation='relu')",
    "conv2d(x, w, activation='swish')": "conv2d(x, w, activation='silu')",
    "conv2d(x, w, activation='linear')": "conv2d(x, w)",
    "conv2d(x, w, activation='leaky_relu')": "conv2d(x, w, activation=('leaky_relu', 0.01))",
    "conv2d(x, w, precision='stric')": "conv2d(x, w)",
    "conv2d(x, w, algorithm='winograd')": "conv2d(x, w)",
    "conv2d(x, w, stride=2.0)": "conv2d(x, w, stride=2)",
    "conv2d(x, w, out=np.empty((1, 8, 7, 7)))": "conv2d(x, w)",
    "plan_conv2d(x, w.shape)(x, w)": "conv2d(x, w)",
}


def followed(text, message, names):
    """The result of the call `text` after what `message` says has been done to it."""
    names = dict(names)
    tree = ast.parse(text, mode="eval")
    call = next(node for node in ast.walk(tree) if isinstance(node, ast.Call) and _public(node))
    before = re.search(r"; before that, (.*)$", message)
    if before:
        message = message[: before.start()]
    for name, node in zip("xw", call.args, strict=False):  # messages call the operands x and w
        names[name] = _value(node, names)
    if before:
        exec(before[1], names)
    whole = re.search(r"write (conv\w*\(.*)$", message)
    if whole:
        return eval(whole[1], names)
    arguments = {keyword.arg: _value(keyword.value, names) for keyword in call.keywords}
    operands = [names[name] for name, _ in zip("xw", call.args, strict=False)]
    operands += [_value(node, names) for node in call.args[2:]]
    operands, arguments, num_threads = amended(operands, arguments, message, names)
    function = names[call.func.id]
    with ic.config(num_threads=num_threads):
        result = function(*operands, **arguments)
    called = tree.body is not call  # a plan that is called in turn
    return result(NAMES["x"], NAMES["w"]) if called and isinstance(result, ic.Plan) else result


def amended(operands, arguments, message, names):
    """(operands, keywords, threads) as the message wants them."""
    operands, arguments, threads = list(operands), dict(arguments), None
    for array, dtype in re.findall(r"([xw])\.astype\('(\w+)'\)", message):
        operands["xw".index(array)] = np.asarray(names[array]).astype(dtype)
    if found := re.search(r"as in ([xw])(\[None.*?\])", message):
        operands["xw".index(found[1])] = eval(found[1] + found[2], names)
    if found := re.search(r"write bias\.(reshape\(\d+\))", message):
        operands[2] = eval(f"bias.{found[1]}", {"bias": operands[2]})
    if found := re.search(r"unexpected keyword arguments? ((?:'\w+'(?:, )?)+)", message):
        for word in re.findall(r"'(\w+)'", found[1]):
            del arguments[word]
    if found := re.search(r"config\(num_threads=(\d+)\)", message):
        threads = int(found[1])
    if found := re.search(
        r"(?:write|did you mean|for example,|or pass) (?:for example, )?(\w+=.*?)\??$", message
    ):
        arguments |= eval(f"dict({found[1]})")
    elif found := re.search(r"^(\w+) ('.*?') .*(?:did you mean|here it is) ('.*?'|None)", message):
        arguments[found[1]] = ast.literal_eval(found[3])
    elif found := re.search(r"^(\w+) must be an integer, .*; write (\d+)$", message):
        arguments[found[1]] = int(found[2])
    elif found := re.search(r"along (\w): .*pad by (\d+) more", message):
        pads = {axis: (0, 0) for axis in "HW"} | {found[1]: (int(found[2]) // 2,) * 2}
        arguments["padding"] = tuple(pads.values())
    elif found := re.search(r"^x_shape must be a shape, not an array; pass (\(.*\))$", message):
        operands[0] = ast.literal_eval(found[1])
    return operands, arguments, threads


def _public(node):
    return isinstance(node.func, ast.Name) and "conv" in node.func.id


def _value(node, names):
    return eval(ast.unparse(node), names)


def test_there_are_many():
    assert len(WRONG) >= 40


@pytest.mark.parametrize("call", WRONG)
def test_a_hint_followed_literally_arrives_in_one_step(call):
    with pytest.raises((ic.ShapeError, ic.DTypeError, ic.PlanError, TypeError)) as caught:
        eval(call, dict(NAMES))
    result = followed(call, str(caught.value), NAMES)
    np.testing.assert_allclose(result, eval(WRONG[call], dict(NAMES)), rtol=1e-5, atol=1e-4)


def test_pictures_of_pillow_and_tensors_become_arrays_first():
    image = pytest.importorskip("PIL.Image")
    names = NAMES | {"picture": image.fromarray(NAMES["photo"])}
    with pytest.raises(ic.ShapeError) as caught:
        eval("conv2d(picture, sobel)", names)
    result = followed("conv2d(picture, sobel)", str(caught.value), names)
    np.testing.assert_array_equal(result, eval(PLANES, dict(NAMES)))


def test_a_keyword_of_nobody_lists_ours():
    with pytest.raises(
        TypeError,
        match=r"^conv1d\(\) got an unexpected keyword argument 'zzz'; "
        "its parameters are x, w, bias, stride, padding, ",
    ):
        ic.conv1d(NAMES["signal"], NAMES["signal"], zzz=1)


def test_arrays_are_not_repeated_in_messages():
    with pytest.raises(TypeError, match=r"; write bias=\.\.\.$"):
        ic.conv2d(NAMES["x"], NAMES["w"], biases=NAMES["bias"])


@pytest.mark.parametrize("operator", [name for name in ic.__all__ if "conv" in name])
def test_every_operator_names_our_word(operator):
    """It is named by the function that was called, whatever its rank, and `help` shows no more."""
    function, shape = getattr(ic, operator), (1, 1, 1)
    with pytest.raises(TypeError, match=rf"^{operator}\(\) got .* 'strides'; write stride=2$"):
        function(shape, shape, *([shape] if "grad" in operator else []), strides=2)
    assert "other" not in function.__annotations__


def test_tiles_name_our_words_too():
    with pytest.raises(TypeError, match=r"^conv2d\(\) got .* 'strides'; write stride=2$"):
        ic.tiles(NAMES["x"], NAMES["w"], strides=2)

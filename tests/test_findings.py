"""What is found, written and read again: the same, or refused in one line."""

import json
import math
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import lowland as ll
from example import changed, make_results, make_split
from lowland.errors import InputError
from lowland.findings import FORMAT, Results, decode, encode, from_json, to_json
from lowland.results import EPOCHS, FILES, Analysis, load
from stores import seal


def written(results: Results) -> tuple[str, dict[str, np.ndarray]]:
    document, arrays = to_json(results)
    return json.dumps(document, allow_nan=False), arrays


def test_what_is_read_is_what_was_written():
    results = changed(make_results(), "", balanced=make_split(), layers={"4": make_split(seed=1)})
    text, arrays = written(results)
    again = from_json(text, arrays)
    document, others = to_json(again)
    assert json.dumps(document) == text
    assert others.keys() == arrays.keys()
    assert {"duality/sigma_g", "balanced/c", "layers/4/eigenvalue"} <= arrays.keys()
    for name, array in arrays.items():
        np.testing.assert_array_equal(others[name], array)
    assert again.subject == results.subject
    assert again.layer_rows == results.layer_rows
    assert again.origin.training.settings == results.origin.training.settings
    assert again.duality.totals == results.duality.totals


def test_numbers_that_are_not_finite_are_written_and_read():
    results = changed(make_results(), "duality.fit", loss_defect=math.inf, mean_residual=-math.inf)
    text, arrays = written(results)
    assert '"loss_defect": "Infinity"' in text
    again = from_json(text, arrays)
    assert again.duality.fit.loss_defect == math.inf
    assert again.duality.fit.mean_residual == -math.inf
    assert math.isnan(again.measures[3].value)


class Cancelling(nn.Module):
    """The outputs are zero whatever the data, but not when one of the layers alone is shifted."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.other, self.head = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 3)
        self.other.load_state_dict(self.layer.state_dict())

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layer(x) - self.other(x))


def test_an_infinite_loss_defect_is_saved_and_shown(tmp_path):
    """Losses that do not change at all, although the dual weights change them."""
    torch.manual_seed(0)
    X, Z, y = torch.randn(12, 4), torch.randn(12, 4), torch.arange(12) % 3
    problem = ll.Problem(Cancelling(), train=(X, y), test=(Z, y))
    ll.analyze(problem, "layer", out=tmp_path / "out", dual="activity", measures=[])
    again = load(tmp_path / "out").results
    check = next(check for check in again.checks if "reproduce the losses" in check.name)
    assert again.duality.fit.loss_defect == check.value == math.inf
    assert not check.passed
    page = (tmp_path / "out" / "report.html").read_text()
    assert "not defined: the computation overflowed" in page


def drop(*path: str) -> Callable[[Any], None]:
    def change(document: Any) -> None:
        for key in path[:-1]:
            document = document[key]
        del document[path[-1]]

    return change


def put(value: Any, *path: Any) -> Callable[[Any], None]:
    def change(document: Any) -> None:
        for key in path[:-1]:
            document = document[key]
        document[path[-1]] = value

    return change


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (put(FORMAT - 1, "format"), f"format {FORMAT - 1} and this Lowland reads format {FORMAT}"),
        (drop("format"), "they have format None"),
        (drop("outcome"), "the document has no 'outcome'"),
        (drop("duality", "totals", "eq9"), "duality.totals has no 'eq9'"),
        (put(1, "verdict"), "the document has 'verdict', which is not known"),
        (put(1, "checks", 0, "extra"), r"checks\[0\] has 'extra', which is not known"),
        (put("0.3", "duality", "totals", "eq9"), "eq9 should be a number; it is '0.3'"),
        (put(None, "duality", "totals", "eq9"), "eq9 should be a number; it is None"),
        (put(True, "outcome", "gap"), "outcome.gap should be a number; it is True"),
        (
            put(10.5, "duality", "setting", "n_sharp"),
            "n_sharp should be a whole number; it is 10.5",
        ),
        (
            put("adam", "duality", "setting", "basis"),
            "'hessian' or 'ggn' or 'fisher'; it is 'adam'",
        ),
        (put(1, "checks", 0, "passed"), r"checks\[0\].passed should be true or false; it is 1"),
        (put({}, "notes"), "notes should be a list; it is {}"),
        (put([0.1], "duality", "totals", "intervals", "sharp"), "sharp should be a list of 2"),
        (put([], "duality", "fit", "degenerate"), "degenerate should be an object"),
        (put([1], "origin", "training", "settings", "seed"), "settings.seed should be true or"),
        (put("duality/nothing", "duality", "per_direction", "c"), "c should be the name of an arr"),
        (put("x" * 100, "subject", "parameters"), "parameters should be a whole number; it is 'xx"),
    ],
)
def test_what_is_not_known_is_refused_in_one_line(tmp_path, change, words):
    folder = Analysis(make_results(), b"w").save(tmp_path / "saved")
    document = json.loads((folder / "results.json").read_text())
    change(document)
    (folder / "results.json").write_text(json.dumps(document))
    seal(folder)
    with pytest.raises(InputError, match=words) as error:
        load(folder)
    assert str(error.value).startswith(f"the results in {folder} cannot be read: ")
    assert str(error.value).endswith("; run the analysis again")
    assert "\n" not in str(error.value)


def test_bare_constants_and_arrays_of_nothing_are_refused():
    text, arrays = written(make_results())
    with pytest.raises(InputError, match="no JSON: NaN is not JSON"):
        from_json(text.replace("21.3", "NaN", 1), arrays)
    with pytest.raises(InputError, match="the array 'left' belongs to nothing"):
        from_json(text, {**arrays, "left": np.zeros(3)})
    with pytest.raises(InputError, match="vectors of one length"):
        from_json(text, {**arrays, "duality/c": np.zeros(3)})


def test_what_json_cannot_hold_is_not_written():
    with pytest.raises(TypeError, match="seconds is complex"):
        encode(changed(make_results(), "", seconds=1j), {})
    with pytest.raises(ValueError, match="two arrays are called 'layers/4/c'"):
        encode({"4": make_split()}, {"layers/4/c": np.zeros(1)}, "layers")


def test_a_setting_keeps_its_type():
    settings = {"a": 1, "b": 1.0, "c": True, "d": "x", "e": None, "f": math.inf}
    kind = dict[str, bool | int | float | str | None]
    again = decode(kind, json.loads(json.dumps(encode(settings, {}))), {})
    assert [(k, type(v), v) for k, v in again.items()] == [
        (k, type(v), v) for k, v in settings.items()
    ]


# --- a directory ---------------------------------------------------------------------------------


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    return Analysis(make_results(), b"w").save(tmp_path / "saved")


def test_load_reads_what_is_there(saved, tmp_path):
    assert {path.name for path in saved.iterdir()} == set(FILES)
    found = load(saved)
    assert found.weights == b"w"
    assert found.results.outcome == make_results().outcome
    untrained = changed(make_results(), "origin", training=None)
    bare = Analysis(untrained, b"w").save(tmp_path / "bare")
    assert {path.name for path in bare.iterdir()} == set(FILES) - {EPOCHS}


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("results.json", b""),
        ("results.json", b"{"),
        ("results.json", b"\xff\xfe"),
        ("results.json", b"[1]"),
        ("arrays.npz", b""),
        ("arrays.npz", b"PK\3\4 cut"),
        ("arrays.npz", b"\x93NUMPY"),
        ("arrays.npz", None),
        ("weights.safetensors", None),
    ],
)
@pytest.mark.parametrize("sealed", [False, True])
def test_damaged_results_are_an_input_error(saved, name, content, sealed):
    (saved / name).unlink()
    if content is not None:
        (saved / name).write_bytes(content)
    if sealed:
        seal(saved)
    with pytest.raises(InputError, match=str(saved)) as error:
        load(saved)
    assert "\n" not in str(error.value)


def test_a_flipped_byte_in_the_arrays_is_an_input_error(saved):
    path = saved / "arrays.npz"
    arrays = dict(np.load(path))
    np.savez(path, **arrays)  # not compressed: the bytes can be found
    whole = bytearray(path.read_bytes())
    place = whole.index(arrays["duality/c"].tobytes())
    whole[place + 8] ^= 1
    path.write_bytes(whole)
    with pytest.raises(InputError, match=r"are damaged: arrays\.npz does not match SHA256SUMS"):
        load(saved)
    seal(saved)
    with pytest.raises(InputError, match=r"arrays\.npz cannot be read \(BadZipFile: Bad CRC-32"):
        load(saved)


@pytest.mark.parametrize("name", sorted({*FILES} - {"report.html"}))
def test_every_changed_byte_is_refused(saved, name):
    """At places drawn from a seed, each in a way of its own; the message names the file."""
    path, random = saved / name, np.random.default_rng(5)
    whole = path.read_bytes()
    for place in random.integers(len(whole), size=60):
        damaged = bytearray(whole)
        damaged[place] ^= random.integers(1, 256)
        path.write_bytes(damaged)
        with pytest.raises(InputError, match=f"{saved} are damaged: ") as error:
            load(saved)
        assert name in str(error.value) or name == "SHA256SUMS"
        assert "\n" not in str(error.value)
    for damaged in (b"", whole[:-1], whole[: len(whole) // 2], whole + b"\n"):
        path.write_bytes(damaged)
        with pytest.raises(InputError, match=f"{saved} are damaged: "):
            load(saved)
    path.unlink()
    with pytest.raises(InputError, match=f"{saved} .*{name}"):
        load(saved)
    path.write_bytes(whole)
    assert load(saved).weights == b"w"


def test_an_archive_that_unpacks_to_more_than_itself_is_refused(saved):
    arrays = dict(np.load(saved / "arrays.npz"))
    arrays["duality/c"] = np.zeros(10_000_000)
    np.savez_compressed(saved / "arrays.npz", **arrays)
    seal(saved)
    tracemalloc.start()
    with pytest.raises(InputError, match=r"arrays\.npz has .* bytes and unpacks to 80,"):
        load(saved)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 10e6


def test_a_number_that_no_float_holds_and_arrays_of_texts_are_refused():
    text, arrays = written(make_results())
    with pytest.raises(InputError, match="should be a number; it is 1000"):
        from_json(text.replace("21.3", "1" + "0" * 400, 1), arrays)
    with pytest.raises(InputError, match="c should be an array of numbers; it is dtype"):
        from_json(text, {**arrays, "duality/c": arrays["duality/c"].astype(str)})

"""Which runs a grid holds, and what is said of one that cannot be."""

import dataclasses
import json
import math
import pickle
import re
import subprocess
import sys
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lowland.errors import InputError
from lowland.experiment import SETTINGS, Configuration
from lowland.sweep import Grid

# The same examples everywhere, and none fails for being slow on a busy machine.
steady = settings(
    derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow], max_examples=200
)

FIGURE_3 = """
# every run
network = "784-30-30-10"
stop_loss = 5e-4

[[grid]]            # every combination of these
learning_rate = [0.005, 0.01, 0.02, 0.05, 0.1]
seed = "0..9"       # whole numbers from 0 to 9

[[grid]]
batch_size = [25, 100, 200, 400]
seed = "0..9"
"""


@pytest.fixture
def read(tmp_path):
    def of(text: str | bytes) -> Grid:
        path = tmp_path / "g.toml"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return Grid.read(path)

    return of


def said(make, *args, **keys) -> str:
    with pytest.raises(InputError) as caught:
        make(*args, **keys)
    message = str(caught.value)
    assert "\n" not in message
    return message


# What runs there are


def test_a_run_without_settings_is_that_of_feng_and_tu():
    run = Configuration()
    assert run.sizes == (784, 30, 30, 10)
    assert (run.optimizer, run.learning_rate, run.batch_size) == ("sgd", 0.1, 25)
    assert (run.decay, run.stop_loss, run.max_epochs) == (0.0, 5e-4, 1000)
    assert list(Grid()) == [run]


def test_the_last_key_changes_fastest():
    runs = list(Grid(learning_rate=[0.2, 0.1], optimizer="sam", seed=(4, 3)))
    assert [(r.learning_rate, r.seed) for r in runs] == [(0.2, 4), (0.2, 3), (0.1, 4), (0.1, 3)]
    assert {r.optimizer for r in runs} == {"sam"}
    assert {r.batch_size for r in runs} == {25}


def test_a_sum_holds_the_runs_of_both_once():
    first, second = Grid(seed=[0, 1]), Grid(seed=[2, 1], batch_size=[25, 50])
    both = first + second
    assert [(r.seed, r.batch_size) for r in both] == [(0, 25), (1, 25), (2, 25), (2, 50), (1, 50)]
    assert len(both) == 5
    assert both.varied == ["batch_size", "seed"]
    assert first.varied == ["seed"]
    with pytest.raises(TypeError):
        first + Configuration()


def test_arrays_ranges_and_their_short_form_vary_a_key():
    assert list(Grid(seed=np.arange(3))) == list(Grid(seed=range(3))) == list(Grid(seed="0..2"))
    rates = np.array([0.5, 0.25])
    assert list(Grid(learning_rate=rates)) == list(Grid(learning_rate=[0.5, 0.25]))
    assert len(Grid(seed=" 7 .. 7 ")) == 1


def test_a_list_of_names_is_one_value_and_a_list_of_lists_several():
    assert [r.layers for r in Grid(layers=["1", "3"])] == [("1", "3")]
    assert [r.layers for r in Grid(layers=[["1", "3"], [], "5"])] == [("1", "3"), (), ("5",)]
    assert [r.measures for r in Grid(measures=[])] == [()]
    assert [r.measures for r in Grid(measures="trace")] == [("trace",)]


def test_the_grid_of_figure_3(read):
    grid = read(FIGURE_3)
    rates, batches = [0.005, 0.01, 0.02, 0.05, 0.1], [25, 100, 200, 400]
    ours = {(r.learning_rate, r.batch_size, r.seed) for r in grid}
    assert ours == {(rate, 25, s) for rate in rates for s in range(10)} | {
        (0.1, batch, s) for batch in batches for s in range(10)
    }
    assert len(grid) == 5 * 10 + 4 * 10 - 10  # the rate 0.1 with batches of 25 is in both
    same = Grid(learning_rate=rates, seed=range(10)) + Grid(batch_size=batches, seed=range(10))
    assert list(grid) == list(same)
    assert repr(grid) == "Grid(80 runs over learning_rate, batch_size, seed)"


def test_keys_at_the_top_multiply_every_grid(read):
    assert len(read('seed = "0..9"\nlearning_rate = [0.1, 0.2]')) == 20
    grid = read("seed = [1, 2]\n[[grid]]\nbatch_size = [5, 6]\n[[grid]]\ndropout = 0.5")
    assert [(r.seed, r.batch_size, r.dropout) for r in grid] == [
        *[(1, 5, 0.0), (1, 6, 0.0), (2, 5, 0.0), (2, 6, 0.0)],
        *[(1, 25, 0.5), (2, 25, 0.5)],
    ]
    # What only goes together in each grid may stand apart in the file.
    (run,) = read('radius = 0.1\n[[grid]]\noptimizer = "sam"')
    assert (run.radius, run.optimizer) == (0.1, "sam")


def test_toml_has_a_word_for_none_and_editors_have_a_mark_for_utf8(read):
    runs = read(b'\xef\xbb\xbfdecay_epochs = [50, "none"]\r\nper_class = "none"\r\n')
    assert [(r.decay_epochs, r.per_class) for r in runs] == [(50, None), (None, None)]


@steady
@given(
    st.lists(st.floats(1e-6, 10), min_size=1, max_size=6, unique=True),
    st.lists(st.integers(1, 9999), min_size=1, max_size=6, unique=True),
    st.lists(st.booleans(), min_size=1, max_size=2, unique=True),
    st.permutations(["learning_rate", "batch_size", "bias"]),
)
def test_a_grid_has_as_many_runs_as_combinations(rates, batches, biases, order):
    keys = {"learning_rate": rates, "batch_size": batches, "bias": biases}
    keys = {name: keys[name] for name in order}
    runs = list(Grid(**keys))
    assert len(runs) == math.prod(map(len, keys.values())) == len(set(runs))
    places = [tuple(keys[k].index(getattr(r, k)) for k in order) for r in runs]
    assert all(a < b for a, b in pairwise(places))  # lexicographic: the last key is the fastest


SEEDS = st.integers(0, 2**63 - 1)
NAMES = st.lists(st.text(min_size=1), unique=True, max_size=3)
WORDS = {
    "data": st.sampled_from(["mnist5k", "xor", "my.data:pair"]),
    "network": st.sampled_from(["2-1", "784-30-30-10", "lenet", "nets:make"]),
    "loss": st.sampled_from(["mse", "cross_entropy", "my.losses:huber"]),
    "optimizer": st.sampled_from(["sgd", "sam", "asam", "rmsprop", "entropy_sgd", "my.own:make"]),
    "schedule": st.sampled_from(["constant", "cosine", "cyclical", "warm_restarts"]),
    "average": st.sampled_from(["swa", "ema"]),
    "penalty": st.sampled_from(["squared", "norm", "global_norm"]),
    "noise_kind": st.sampled_from(["replaced", "added"]),
    "init": st.sampled_from(["xavier", "torch"]),
    "dropout_layers": st.sampled_from(["hidden", "first"]),
    "basis": st.sampled_from(["hessian", "ggn", "fisher"]),
    "dual": st.sampled_from(["activity", "output"]),
    "details": st.lists(st.sampled_from(["mine:norms", "my.own:angles"]), unique=True),
    "rescalings": st.lists(st.sampled_from(["layers", "units", "norms", "split"]), unique=True),
}
SOME = {
    bool: st.booleans(),
    int: st.integers(1, 2**63 - 1),
    float: st.floats(0, 1, exclude_min=True, exclude_max=True),
    tuple: NAMES,
}
POSSIBLE = st.fixed_dictionaries(
    {},
    optional={
        name: (WORDS[name] if name in WORDS else SOME[setting.kind])
        | (st.none() if setting.optional else st.nothing())
        for name, setting in SETTINGS.items()
        if name != "radius"
    },
).filter(lambda settings: settings.get("measures") or not settings.get("rescalings"))


@steady
@given(POSSIBLE)
def test_a_run_comes_back_from_json(some):
    run = Configuration.of(some)
    stored = run.to_dict()
    assert list(stored) == [f.name for f in dataclasses.fields(Configuration)]
    again = Configuration.of(json.loads(json.dumps(stored, allow_nan=False)))
    assert again == run
    assert hash(again) == hash(run)
    assert json.dumps(again.to_dict()) == json.dumps(stored)
    assert list(Grid(**stored)) == [run] == [pickle.loads(pickle.dumps(run))]


def test_equal_runs_are_written_alike():
    spelled = Configuration(
        learning_rate=1, decay=-0.0, seed=np.int64(3), momentum=np.float64(0.5), layers=["1"]
    )
    plain = Configuration(learning_rate=1.0, decay=0.0, seed=3, momentum=0.5, layers=("1",))
    assert spelled == plain
    assert json.dumps(spelled.to_dict()) == json.dumps(plain.to_dict())


def test_what_is_measured_does_not_decide_the_weights():
    run = Configuration(seed=5)
    others = Configuration(seed=5, layers=("1",), n_sharp=3, basis="ggn", measures=("trace",))
    assert run.training() == others.training()
    assert set(run.to_dict()) - set(run.training()) == {
        "layers",
        "n_sharp",
        "basis",
        "dual",
        "widths",
        "measures",
        "rescalings",
        "details",
    }
    assert run.training() != Configuration(seed=6).training()


def test_the_names_are_those_that_the_rooms_know():
    from lowland import data, losses

    assert SETTINGS["data"].values.names == data.names()
    for name in SETTINGS["loss"].values.names:
        assert losses.resolve(name).name == name


def test_every_key_says_what_it_takes_and_means():
    for setting in SETTINGS.values():
        assert setting.check(setting.default) == setting.default
        assert setting.expected
        assert setting.meaning
        assert setting.group in ("data", "network", "training", "analysis", "sweep")
    assert SETTINGS["momentum"].expected == "a number from 0 to below 1"
    assert SETTINGS["per_class"].expected == 'a whole number from 1 up or "none"'


def test_neither_torch_nor_numpy_is_imported():
    code = "import sys, lowland.sweep.grid; print({'torch', 'numpy'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


# What is said of mistakes


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ("learning_rat", "learning_rate"),
        ("batchsize", "batch_size"),
        ("Batch-Size", "batch_size"),
        ("learningRate", "learning_rate"),
        ("lr", "learning_rate"),
        ("beta", "decay"),
        ("weight_decay", "decay"),
        ("epochs", "max_epochs"),
        ("noise", "label_noise"),
        ("rho", "radius"),
        ("model", "network"),
        ("seeds", "seed"),
        ("self", None),
        ("", None),
        ("zzz", None),
    ],
)
def test_an_unknown_key_is_named_with_the_nearest_one(wrong, right, read):
    hint = f"; did you mean '{right}'?" if right else f"; the keys are {', '.join(SETTINGS)}"
    expected = f"there is no key {wrong!r}{hint}"
    assert said(Grid, **{wrong: 1}) == expected
    assert said(Configuration.of, {wrong: 1}) == expected
    assert said(read, f'"{wrong}" = 1').endswith(f"g.toml: {expected}")
    later = said(read, f'[[grid]]\nseed = 1\n[[grid]]\n"{wrong}" = 1')
    assert later.endswith(f"g.toml, [[grid]] 2: {expected}")


@steady
@given(st.sampled_from(list(SETTINGS)), st.data())
def test_a_key_with_one_letter_missing_is_recognised(name, data):
    if len(name) < 5:
        return  # "ata" may be anything
    at = data.draw(st.integers(0, len(name) - 1))
    wrong = name[:at] + name[at + 1 :]
    if wrong not in SETTINGS:
        message = said(Grid, **{wrong: 1})
        assert message == f"there is no key {wrong!r}; did you mean {name!r}?"


IMPOSSIBLE = [
    ("learning_rate", 0, "a number above 0", "0"),
    ("learning_rate", -0.1, "a number above 0", "-0.1"),
    ("learning_rate", math.inf, "a number above 0", "inf"),
    ("learning_rate", math.nan, "a number above 0", "nan"),
    ("learning_rate", 10**400, "a number above 0", "a number beyond 64 bits"),
    ("learning_rate", True, "a number above 0", "True"),
    ("learning_rate", "0.1", "a number above 0", "'0.1'"),
    ("learning_rate", None, "a number above 0", "None"),
    ("learning_rate", [[0.1]], "a number above 0", "[0.1]"),
    ("learning_rate", {"a": 1}, "a number above 0", "{'a': 1}"),
    ("learning_rate", 1j, "a number above 0", "1j"),
    ("label_noise", 1.5, "a number from 0 to 1", "1.5"),
    ("momentum", 1, "a number from 0 to below 1", "1"),
    ("dropout", 1.0, "a number from 0 to below 1", "1.0"),
    ("decay", -1e-9, "a number from 0 up", "-1e-09"),
    ("radius", 0.0, 'a number above 0 or "none"', "0.0"),
    (
        "rescalings",
        ["units", "inputs"],
        "a list of different names of layers, units, norms, outputs, split",
        "['units', 'inputs']",
    ),
    ("batch_size", 0, "a whole number from 1 up", "0"),
    ("batch_size", 25.0, "a whole number from 1 up", "25.0"),
    ("batch_size", "none", "a whole number from 1 up", "'none'"),
    ("seed", True, "a whole number from 0 up", "True"),
    ("seed", -1, "a whole number from 0 up", "-1"),
    ("seed", "-1..3", "a whole number from 0 up", "-1"),
    ("seed", 2**63, "a whole number from 0 up", "a number beyond 64 bits"),
    ("seed", 10**5000, "a whole number from 0 up", "a number beyond 64 bits"),
    ("seed", [[10**5000]], "a whole number from 0 up", "a list too long to show"),
    ("decay_epochs", 0, 'a whole number from 1 up or "none"', "0"),
    ("bias", 1, "true or false", "1"),
    ("bias", "false", "true or false", "'false'"),
    ("layers", 1, "a list of different names", "1"),
    ("layers", ["1", 3], "a list of different names", "['1', 3]"),
    ("layers", [""], "a list of different names", "['']"),
    ("measures", ["gap", "gap"], "a list of different names", "['gap', 'gap']"),
    ("penalty", "l1", "one of squared, norm, global_norm", "'l1'"),
    ("basis", "Hessian", "one of hessian, ggn, fisher", "'Hessian'; did you mean 'hessian'?"),
]


@pytest.mark.parametrize(
    ("name", "value", "expected", "came"), IMPOSSIBLE, ids=lambda value: type(value).__name__
)
def test_an_impossible_value_is_named_with_the_possible_ones(name, value, expected, came):
    assert said(Grid, **{name: value}) == f"{name} must be {expected}; got {came}"


@pytest.mark.parametrize(
    ("name", "value", "hint"),
    [
        ("optimizer", "SGD", "did you mean 'sgd'?"),
        ("optimizer", "entropy-sgd", "did you mean 'entropy_sgd'?"),
        ("optimizer", "LookSAM", "did you mean 'look_sam'?"),
        ("schedule", "Cosine", "did you mean 'cosine'?"),
        ("average", "mean", "one of swa, ema"),
        ("loss", "crossentropy", "did you mean 'cross_entropy'?"),
        ("data", "fashion-mnist", "did you mean 'fashion_mnist'?"),
        ("data", "my/data.py:pair", "pkg.module:factory"),
        ("data", ":pair", "pkg.module:factory"),
        ("network", "784", "784-30-30-10"),
        ("network", "784-0-10", "784-30-30-10"),
        ("network", "784--10", "784-30-30-10"),
        ("network", "784x30x10", "784-30-30-10"),
        pytest.param("network", f"784-{'9' * 5000}-10", "784-30-30-10", id="long"),
        ("network", "784-30-10\n", "784-30-30-10"),
        ("network", "LeNet", "did you mean 'lenet'?"),
        ("network", [784, 30, 10], "784-30-30-10"),
    ],
)
def test_a_name_that_does_not_exist(name, value, hint):
    message = said(Grid, **{name: value})
    assert message.startswith(f"{name} must be ")
    assert hint in message
    assert len(message) < 300


def test_settings_that_do_not_go_together(read):
    assert said(Configuration, radius=0.1) == (
        "radius is 0.1, but only sam, asam, sam_on, friendly_sam, look_sam, functional_sam have "
        "one and optimizer is 'sgd'; leave radius out"
    )
    assert Configuration(radius=0.1, optimizer="asam").radius == 0.1
    assert said(Configuration, rescalings="units") == (
        "rescalings are named, but no measures to take again; name some in measures"
    )
    assert Configuration(rescalings="units", measures="trace").rescalings == ("units",)
    assert "adam has its own; leave momentum out" in said(
        Configuration, optimizer="adam", momentum=0.9
    )
    message = said(read, 'seed = 1\n[[grid]]\n[[grid]]\noptimizer = ["sam", "sgd"]\nradius = 0.1')
    assert "g.toml, [[grid]] 2: radius is 0.1" in message
    assert message.endswith(
        "leave radius out, or give it a grid of its own: every combination is one run"
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("learning_rate = []", "g.toml: learning_rate has no values; give some, or leave it out"),
        ("layers = 'a'\nseed = []", "g.toml: seed has no values; give some, or leave it out"),
        ("seed = [3, 1, 3]", "g.toml: seed lists 3 more than once; give each value once"),
        ("decay = [0, 0.0, -0.0]", "g.toml: decay lists 0.0 more than once; give each value once"),
        ("seed = '9..0'", "seed is '9..0', which holds no number; put the smaller one first"),
        (
            "dropout = '0..1'",
            "dropout is '0..1', but only whole numbers have ranges; list the values",
        ),
        ("learning_rate = inf", "g.toml: learning_rate must be a number above 0; got inf"),
        ("learning_rate = 1e400", "g.toml: learning_rate must be a number above 0; got inf"),
        ("stop_loss = nan", "g.toml: stop_loss must be a number above 0; got nan"),
        ("batch_size = true", "g.toml: batch_size must be a whole number from 1 up; got True"),
        ("[seed]\na = 1", "g.toml: seed must be a whole number from 0 up; got {'a': 1}"),
        ("[grid]\nseed = 1", "g.toml: grid must be a table in double brackets, [[grid]]"),
        ("grid = []", "g.toml: grid must be a table in double brackets, [[grid]]"),
        ("grid = [1, 2]", "g.toml: grid must be a table in double brackets, [[grid]]"),
        ("grid = 'x'", "g.toml: grid must be a table in double brackets, [[grid]]"),
        (
            "[training]\nlearning_rate = 0.1",
            "g.toml: there is no table 'training'; the only one is [[grid]], and keys stand above "
            "it or in it",
        ),
        (
            "[[Grid]]\nseed = 1",
            "g.toml: there is no table 'Grid'; the only one is [[grid]], and keys stand above it "
            "or in it",
        ),
        (
            "seed = 1\n[[grid]]\n[[grid]]\nseed = 2",
            "g.toml, [[grid]] 2: seed stands above [[grid]] as well; keep one of them",
        ),
        (
            "[[grid]]\nbatch_size = [5, 0]",
            "g.toml, [[grid]] 1: batch_size must be a whole number from 1 up; got 0",
        ),
        (
            "seed = '0..999'\n[[grid]]\ndata_seed = '0..499'\n[[grid]]\nn_sharp = '1..501'",
            "g.toml: the grid has 1,001,000 combinations, more than 1,000,000; vary fewer keys at "
            "once",
        ),
        (
            "seed = '0..999999999999'",
            "g.toml: seed has 1,000,000,000,000 values; a grid has at most 1,000,000",
        ),
        ("", 'g.toml holds no keys; expected a grid such as seed = "0..9"'),
        ("# seed = 1", 'g.toml holds no keys; expected a grid such as seed = "0..9"'),
    ],
)
def test_a_file_that_describes_no_grid(text, message, read):
    assert said(read, text).endswith(message)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("seed = 1\nbias = True", r"g\.toml is not valid TOML: .*line 2"),
        ("seed = 1\nseed = 2\n", r"g\.toml is not valid TOML: .*line 2"),
        pytest.param("seed = " + "9" * 5000, r"g\.toml is not valid TOML: .*digits", id="long"),
        pytest.param(
            "seed = " + "[" * 10_000, r"g\.toml is not valid TOML: .*recursion", id="deep"
        ),
        ("seed = 1\n\x00", r"g\.toml is not valid TOML: .*line 2"),
        ("# né".encode("latin-1"), r"g\.toml is not UTF-8 text; expected a grid as TOML"),
        ("seed = 1".encode("utf-16"), r"g\.toml is not UTF-8 text; expected a grid as TOML"),
    ],
)
def test_a_file_that_is_not_toml(text, message, read):
    assert re.search(message, said(read, text))


def test_a_file_that_is_not_there(tmp_path):
    assert said(Grid.read, tmp_path / "no.toml").startswith(f"there is no file {tmp_path}")
    assert said(Grid.read, str(tmp_path)).startswith(f"{tmp_path} is a directory")
    (tmp_path / "file").touch()
    message = said(Grid.read, tmp_path / "file" / "g.toml")
    assert message == f"cannot read {tmp_path / 'file' / 'g.toml'}: Not a directory"


def test_too_many_combinations_are_counted_and_not_made():
    message = said(Grid, **dict.fromkeys(("seed", "data_seed", "max_epochs"), range(1, 100_001)))
    assert message == (
        "the grid has 1,000,000,000,000,000 combinations, more than 1,000,000; vary fewer keys at "
        "once"
    )


@steady
@given(
    st.dictionaries(
        st.sampled_from([*SETTINGS, "lr", "grid"]),
        st.recursive(
            st.none()
            | st.booleans()
            | st.integers()
            | st.floats()
            | st.text()
            | st.sampled_from(["0..3", "3..0", "none", "sam", "adam", "2-1", "a:b"]),
            lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner),
            max_leaves=4,
        ),
        max_size=4,
    )
)
def test_whatever_is_given_makes_a_grid_or_one_line(keys):
    try:
        runs = list(Grid(**keys))
    except InputError as error:
        message = str(error)
    else:
        assert len(runs) == len(set(runs)) >= 1
        return
    assert "\n" not in message
    assert any(name in message for name in keys)

"""Weights from files: what fits is loaded exactly, under whatever prefix, and nothing is run."""

import argparse
import json
import os
import pickle
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import torch
from safetensors.torch import load, save_file
from torch import nn

from lowland import InputError
from lowland.checkpoint import load_weights, weights_bytes


def net(seed: int = 0) -> nn.Sequential:
    """With buffers, one of them a count: (2, 3) and (3, 2) weights around a batch norm."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.ReLU(), nn.Linear(3, 2))


def trained() -> nn.Sequential:
    """Other weights than net()'s, and buffers that differ from their initial values."""
    model = net(1)
    model(torch.randn(5, 2))
    return model


def equal(model: nn.Module, state: dict[str, torch.Tensor]) -> bool:
    own = model.state_dict()
    return own.keys() == state.keys() and all(torch.equal(own[k], v) for k, v in state.items())


def test_safetensors(tmp_path):
    state, model = trained().state_dict(), net()
    save_file(state, tmp_path / "a.safetensors")
    assert not equal(model, state)
    load_weights(model, tmp_path / "a.safetensors")
    assert equal(model, state)
    assert int(model[1].num_batches_tracked) == 1


@pytest.mark.parametrize(
    "stored",
    [
        lambda s: s,
        lambda s: {"state_dict": s, "epoch": 3},
        lambda s: {"model_state_dict": s, "optimizer": {"lr": 0.1}},
        lambda s: {"model": s},
        lambda s: {f"module.{k}": v for k, v in s.items()},
        lambda s: {f"_orig_mod.{k}": v for k, v in s.items()},
        lambda s: {f"_orig_mod.module.{k}": v for k, v in s.items()},
        lambda s: {"state_dict": {f"model.{k}": v for k, v in s.items()}, "epoch": 3},  # Lightning
        lambda s: {"state_dict": {f"net._orig_mod.{k}": v for k, v in s.items()}},
    ],
    ids=["bare", "state_dict", "model_state_dict", "model", "ddp", "compiled", "both", "lightning",
         "lightning-compiled"],
)  # fmt: skip
def test_torch_files_as_training_scripts_save_them(tmp_path, stored):
    state, model = trained().state_dict(), net()
    torch.save(stored(state), tmp_path / "a.pt")
    load_weights(model, tmp_path / "a.pt")
    assert equal(model, state)


def test_a_wrapped_model_reads_bare_and_wrapped_names(tmp_path):
    state = trained().state_dict()
    for i, prefix in enumerate(("", "module.")):
        path = tmp_path / f"{i}.pt"
        torch.save({prefix + k: v for k, v in state.items()}, path)
        model = nn.DataParallel(net())
        load_weights(model, path)
        assert equal(model.module, state)


def test_a_submodule_that_is_called_module_is_no_wrapper(tmp_path):
    class Outer(nn.Module):
        def __init__(self, seed):
            super().__init__()
            torch.manual_seed(seed)
            self.weight = nn.Parameter(torch.randn(2))
            self.module = nn.Linear(2, 1, bias=False)
            self.module.weight = nn.Parameter(torch.randn(2))

    saved, model = Outer(1), Outer(0)
    torch.save(saved.state_dict(), tmp_path / "a.pt")
    load_weights(model, tmp_path / "a.pt")
    assert equal(model, saved.state_dict())
    torch.save({"module.weight": torch.ones(2)}, tmp_path / "b.pt")
    with pytest.raises(InputError, match="lacks weight"):
        load_weights(model, tmp_path / "b.pt")


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_the_precision_becomes_the_models(tmp_path, dtype):
    state = {
        k: v.to(dtype) if v.is_floating_point() else v for k, v in trained().state_dict().items()
    }
    torch.save(state, tmp_path / "a.pt")
    model = net()
    load_weights(model, tmp_path / "a.pt")
    assert model[0].weight.dtype == torch.float32
    assert torch.equal(model[0].weight, state["0.weight"].float())


@pytest.mark.parametrize("dtype", [torch.int8, torch.complex64, torch.bool])
def test_numbers_of_another_kind_are_refused(tmp_path, dtype):
    """Raw codes of a quantised layer would load without a word, as other weights."""
    state = trained().state_dict()
    torch.save({**state, "0.weight": torch.ones(3, 2, dtype=dtype)}, tmp_path / "a.pt")
    name = str(dtype).removeprefix("torch.")
    with pytest.raises(InputError, match=rf"0.weight is \(3, 2\) {name} in the file"):
        load_weights(net(), tmp_path / "a.pt")


def test_tied_weights_may_be_stored_once(tmp_path):
    def tied():
        model = nn.Sequential(nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False))
        model[1].weight = model[0].weight
        return model

    weight = torch.arange(9.0).view(3, 3)
    for i, name in enumerate(("0.weight", "1.weight")):
        path = tmp_path / f"{i}.safetensors"
        save_file({name: weight}, path)
        model = tied()
        load_weights(model, path)
        assert torch.equal(model[0].weight, weight)
        assert model[1].weight is model[0].weight
    untied = nn.Sequential(nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False))
    with pytest.raises(InputError, match=r"lacks 0\.weight"):
        load_weights(untied, path)


def test_what_does_not_fit_is_named_and_nothing_is_loaded(tmp_path):
    state, model = trained().state_dict(), net()
    before = {k: v.clone() for k, v in model.state_dict().items()}
    del state["3.bias"]
    state |= {"0.weight": torch.ones(2, 3), "head.weight": torch.ones(1)}
    torch.save(state, tmp_path / "a.pt")
    with pytest.raises(InputError) as error:
        load_weights(model, tmp_path / "a.pt")
    assert "the file lacks 3.bias;" in str(error.value)
    assert "the model has no place for head.weight;" in str(error.value)
    assert "0.weight is (2, 3) float32 in the file and (3, 2) float32 in the model" in str(
        error.value
    )
    assert equal(model, before)


def test_a_long_list_of_names_is_cut(tmp_path):
    torch.save({f"other.{i}": torch.ones(1) for i in range(9)}, tmp_path / "a.pt")
    with pytest.raises(InputError, match=r"no place for other\.0, other\.1, other\.2 and 6 more"):
        load_weights(net(), tmp_path / "a.pt")


class RunsCode:
    def __reduce__(self):
        return os.mkdir, ("pwned",)


@pytest.mark.parametrize(
    "write",
    [
        lambda path: torch.save({"state_dict": trained().state_dict(), "x": RunsCode()}, path),
        lambda path: torch.save(RunsCode(), path, _use_new_zipfile_serialization=False),
        lambda path: path.write_bytes(pickle.dumps(RunsCode())),
        lambda path: path.write_bytes(pickle.dumps(RunsCode(), protocol=2)),
        lambda path: torch.save(net(), path),
    ],
    ids=["zip", "legacy", "pickle", "pickle2", "module"],
)
def test_a_pickle_that_wants_to_run_code_is_refused(tmp_path, monkeypatch, write):
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "a.pt")
    with pytest.raises(InputError, match=r"a\.pt is refused: .* save only model\.state_dict\(\)"):
        load_weights(net(), tmp_path / "a.pt")
    assert not (tmp_path / "pwned").exists()


@pytest.mark.parametrize("suffix", [".pt", ".safetensors"])
@pytest.mark.parametrize(
    "content", [b"", b"\0" * 64, b"hello world\n" * 20, bytes(range(256)) * 4, b"PK\3\4", b"{}"]
)
def test_files_that_are_no_checkpoints(tmp_path, suffix, content):
    path = tmp_path / f"a{suffix}"
    path.write_bytes(content)
    with pytest.raises(InputError, match=f"checkpoint {path} (is empty|cannot be read|is refused)"):
        load_weights(net(), path)


@pytest.mark.parametrize("suffix", [".pt", ".safetensors"])
def test_a_checkpoint_cut_short_anywhere(tmp_path, suffix):
    path = tmp_path / f"a{suffix}"
    (save_file if suffix == ".safetensors" else torch.save)(trained().state_dict(), path)
    whole = path.read_bytes()
    for size in range(1, len(whole), len(whole) // 17):
        path.write_bytes(whole[:size])
        with pytest.raises(InputError):
            load_weights(net(), path)


@pytest.mark.parametrize(
    ("stored", "came"),
    [
        ([torch.ones(2)], "holds list"),
        (torch.ones(2), "holds Tensor"),
        ({"epoch": 3, "net": {"a": torch.ones(1)}}, r"a dict of epoch \(int\), net \(dict\)"),
    ],
)
def test_other_objects_are_described(tmp_path, stored, came):
    torch.save(stored, tmp_path / "a.pt")
    with pytest.raises(InputError, match=f"{came}; expected a state dict of tensors"):
        load_weights(net(), tmp_path / "a.pt")


def test_lazy_layers_are_named_as_the_reason(tmp_path):
    torch.save({}, tmp_path / "a.pt")
    with pytest.raises(InputError, match="lazy layers"):
        load_weights(nn.Sequential(nn.LazyLinear(2)), tmp_path / "a.pt")


def test_weights_bytes_come_back_as_they_were():
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Linear(3, 3))
    model[2].weight = model[0].weight  # tied: safetensors alone refuses shared memory
    model[0].bias.data = torch.arange(6.0)[::2]  # not contiguous
    stored = load(weights_bytes(model))
    assert equal(model, stored)


def test_a_torch_file_that_unpacks_to_more_than_itself_is_refused(tmp_path):
    """As torch itself would read it: 64 MB of zeros in 64 kB."""
    torch.save({"0.weight": torch.zeros(16_000_000)}, tmp_path / "plain.pt")
    with (
        zipfile.ZipFile(tmp_path / "plain.pt") as plain,
        zipfile.ZipFile(tmp_path / "bomb.pt", "w", zipfile.ZIP_DEFLATED) as bomb,
    ):
        for name in plain.namelist():
            bomb.writestr(name, plain.read(name))
    (tmp_path / "plain.pt").unlink()
    assert (tmp_path / "bomb.pt").stat().st_size < 100_000
    code = """if True:
        import resource, sys, torch
        from lowland.checkpoint import load_weights
        from lowland.errors import InputError
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        try:
            load_weights(torch.nn.Linear(2, 2), __import__("pathlib").Path(sys.argv[1]))
        except InputError as error:
            print(error)
        print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
    """
    done = subprocess.run(
        [sys.executable, "-c", code, tmp_path / "bomb.pt"], capture_output=True, text=True
    )
    message, grown = done.stdout.splitlines()
    assert "bytes and unpacks to 64,0" in message
    assert "save it anew with torch.save, or use safetensors" in message
    assert int(grown) < 20_000  # kB


def test_a_lightning_file_holds_more_than_the_model(tmp_path):
    """The loss's weights beside the model's, and settings of the run."""
    state, model = trained().state_dict(), net()
    stored = {f"net.{k}": v for k, v in state.items()} | {"criterion.weight": torch.ones(2)}
    settings = {"folder": Path("runs"), "args": argparse.Namespace(lr=0.1)}
    torch.save({"state_dict": stored, "hyper_parameters": settings}, tmp_path / "last.ckpt")
    load_weights(model, tmp_path / "last.ckpt")
    assert equal(model, state)
    # A second module of the same names is another one: neither is taken for the model.
    torch.save(stored | {f"ema.{k}": v for k, v in state.items()}, tmp_path / "two.ckpt")
    with pytest.raises(InputError, match="the file lacks 0.weight"):
        load_weights(net(), tmp_path / "two.ckpt")


def sharded(folder: Path, state: dict[str, torch.Tensor]) -> Path:
    """Two files and the index that Transformers writes; returns the index."""
    folder.mkdir()
    names = list(state)
    files = {"model-00001-of-00002.safetensors": names[:3]}
    files["model-00002-of-00002.safetensors"] = names[3:]
    for file, inside in files.items():
        save_file({k: state[k] for k in inside}, folder / file)
    places = {k: file for file, inside in files.items() for k in inside}
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {}, "weight_map": places}))
    (folder / "config.json").write_text("{}")
    return index


def test_a_folder_of_one_file_or_several(tmp_path):
    state, model, again = trained().state_dict(), net(), net()
    sharded(tmp_path / "several", state)
    load_weights(model, tmp_path / "several")
    assert equal(model, state)
    (tmp_path / "single").mkdir()
    torch.save(state, tmp_path / "single" / "pytorch_model.bin")
    load_weights(again, tmp_path / "single")
    assert equal(again, state)


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda index: index.write_text("{"), "expected JSON with a 'weight_map'"),
        (lambda index: index.write_text("[1]"), "expected JSON with a 'weight_map'"),
        (lambda index: index.write_text('{"weight_map": {"a": "../b.pt"}}'), "not beside it"),
        (lambda index: index.write_text('{"weight_map": {"a": "/b.pt"}}'), "not beside it"),
        (lambda index: index.with_name("model-00002-of-00002.safetensors").unlink(), "no checkpo"),
        (lambda index: index.write_text(index.read_text().replace('"3.bias"', '"4.bias"')),
         "do not agree on 3.bias, 4.bias"),
        (lambda index: index.unlink(), "directory without model.safetensors or pytorch_model.bin"),
    ],
)  # fmt: skip
def test_folders_that_are_no_checkpoints(tmp_path, damage, words):
    damage(sharded(tmp_path / "folder", trained().state_dict()))
    with pytest.raises(InputError, match=words):
        load_weights(net(), tmp_path / "folder")


@pytest.mark.slow
@pytest.mark.parametrize("size", ["1GB", "3KB"])
def test_what_transformers_saves_is_read(tmp_path, size):
    from transformers import GPT2Config, GPT2LMHeadModel

    sizes = {"vocab_size": 7, "n_embd": 8, "n_layer": 1, "n_head": 2, "n_positions": 6}
    torch.manual_seed(0)
    saved, model = (GPT2LMHeadModel(GPT2Config(**sizes)) for _ in range(2))
    saved.save_pretrained(tmp_path / "run", max_shard_size=size)
    assert (tmp_path / "run" / "model.safetensors").exists() == (size == "1GB")
    load_weights(model, tmp_path / "run")
    assert equal(model, saved.state_dict())  # the head's weights are the embedding's, stored once


@pytest.mark.slow
def test_what_lightning_saves_is_read(tmp_path):
    """In a process of its own: Lightning leaves hooks and warnings behind."""
    script = """
import argparse, sys, torch, lightning, logging
from pathlib import Path
from torch import nn
from lowland.checkpoint import load_weights

def net():
    return nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))

class Module(lightning.LightningModule):
    def __init__(self, lr=0.1, folder=Path("runs"), args=argparse.Namespace(a=1)):
        super().__init__()
        self.save_hyperparameters()
        self.model, self.criterion = net(), nn.CrossEntropyLoss(weight=torch.ones(2))
    def training_step(self, batch, index):
        return self.criterion(self.model(batch[0]), batch[1])
    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters())

data = torch.utils.data.TensorDataset(torch.randn(8, 3), torch.arange(8) % 2)
module = Module()
trainer = lightning.Trainer(max_epochs=1, logger=False, accelerator="cpu")
trainer.fit(module, torch.utils.data.DataLoader(data, 4))
trainer.save_checkpoint("last.ckpt")
model = net()
load_weights(model, Path("last.ckpt"))
assert all(torch.equal(a, b) for a, b in zip(model.parameters(), module.model.parameters()))
print("as saved")
"""
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, timeout=180
    )
    assert done.stdout.endswith("as saved\n"), done.stderr[-2000:]

"""What people bring who see the library for the first time, each with its losses in plain torch."""

from collections import UserDict
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader

import lowland as ll
from owned import Owned, entropy

X = torch.randn(9, 3, generator=torch.Generator().manual_seed(0))
Y = torch.arange(9) % 3
NEWCOMERS: dict[str, Callable[[], Owned]] = {}


def newcomer(make: Callable[[], Owned]) -> Callable[[], Owned]:
    def seeded() -> Owned:
        with torch.random.fork_rng():
            torch.manual_seed(0)
            return make()

    NEWCOMERS[make.__name__] = seeded
    return seeded


def brought(
    model: nn.Module, train: Any, losses: Callable[[Any], Tensor], loss: Any = "cross_entropy"
) -> Owned:
    return Owned(model, train, None, losses, None, loss)


class Small(nn.Module):
    """Runs as ``way`` has it: forward passes of users in a line each."""

    def __init__(self, way: Callable[["Small", Any], Any]) -> None:
        super().__init__()
        self.a, self.b, self.way = nn.Linear(3, 3), nn.Linear(3, 3), way

    def plain(self, x: Tensor) -> Tensor:
        return self.b(torch.tanh(self.a(x)))

    def forward(self, x: Any) -> Any:
        return self.way(self, x)


def classified(model: Small) -> Tensor:
    return entropy(model.plain(X.double()), Y)


# Autocast -----------------------------------------------------------------------------------------


def in_autocast(context: Callable[[], Any]) -> Callable[[], Owned]:
    def way(model: Small, x: Tensor) -> Tensor:
        with context():
            return model.plain(x)

    return lambda: brought(Small(way), (X, Y), classified)


def switched(model: Small, x: Tensor) -> Tensor:
    torch.set_autocast_enabled("cpu", True)
    out = model.plain(x)
    torch.set_autocast_enabled("cpu", False)
    return out


AUTOCAST = {
    "autocast": in_autocast(lambda: torch.autocast("cpu", dtype=torch.bfloat16)),
    "autocast_amp": in_autocast(lambda: torch.amp.autocast("cpu", dtype=torch.float16)),
    "autocast_cpu": in_autocast(lambda: torch.cpu.amp.autocast(dtype=torch.bfloat16)),
    "autocast_cuda": in_autocast(lambda: torch.autocast("cuda", dtype=torch.float16)),
    "autocast_cuda_amp": in_autocast(lambda: torch.cuda.amp.autocast()),
    "autocast_switched": lambda: brought(Small(switched), (X, Y), classified),
    "autocast_decorated": lambda: brought(
        Small(torch.autocast("cpu", dtype=torch.bfloat16)(Small.plain)), (X, Y), classified
    ),
    "autocast_nested": in_autocast(lambda: _nested()),
}


def _nested() -> Any:
    torch.autocast("cpu", enabled=False).__enter__()
    return torch.autocast("cpu", dtype=torch.bfloat16)


for _name, _make in AUTOCAST.items():
    _make.__name__ = _name
    newcomer(_make)


class Attention(nn.Module):
    """As nanoGPT has it."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.c_attn, self.c_proj = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (t.unsqueeze(1) for t in self.c_attn(x).split(x.shape[-1], 2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.c_proj(y.squeeze(1))


class NanoGPT(nn.Module):
    def __init__(self, words: int = 4, width: int = 2) -> None:
        super().__init__()
        self.wte, self.wpe = nn.Embedding(words, width), nn.Embedding(5, width)
        self.ln, self.attn = nn.LayerNorm(width), Attention(width)
        self.lm_head = nn.Linear(width, words, bias=False)
        self.wte.weight = self.lm_head.weight
        nn.init.normal_(self.wte.weight)

    def forward(self, idx: Tensor) -> Tensor:
        with torch.amp.autocast(device_type="cpu", dtype=torch.bfloat16):
            x = self.wte(idx) + self.wpe(torch.arange(idx.shape[1]))
            x = x + self.attn(self.ln(x))
            return self.lm_head(x)


@newcomer
def nanogpt() -> Owned:
    ids = torch.randint(4, (6, 6), generator=torch.Generator().manual_seed(0))

    def losses(model: nn.Module) -> Tensor:
        return F.cross_entropy(
            model(ids[:, :-1]).transpose(1, 2), ids[:, 1:], reduction="none"
        ).mean(1)

    return brought(NanoGPT(), (ids[:, :-1], ids[:, 1:]), losses)


class TimmLike(nn.Module):
    """A patch embedding, attention in autocast with a softmax of its own, and a head."""

    def __init__(self, width: int = 2) -> None:
        super().__init__()
        self.patch_embed, self.norm = nn.Conv2d(1, width, 2, 2), nn.LayerNorm(width)
        self.qkv, self.head = nn.Linear(width, 3 * width), nn.Linear(width, 3)

    @torch.autocast("cpu", dtype=torch.bfloat16)
    def forward(self, x: Tensor) -> Tensor:
        x = self.patch_embed(x).flatten(2).transpose(1, 2)
        q, k, v = self.qkv(self.norm(x)).chunk(3, -1)
        attn = (q @ k.transpose(-2, -1)).softmax(-1, dtype=torch.float32).type_as(v)
        return self.head((x + attn @ v).mean(1)).float()


@newcomer
def timm() -> Owned:
    x = torch.randn(6, 1, 4, 4)

    def losses(m: Any) -> Tensor:
        z = m.patch_embed(x.double()).flatten(2).transpose(1, 2)
        q, k, v = m.qkv(m.norm(z)).chunk(3, -1)
        z = z + (q @ k.transpose(-2, -1)).softmax(-1) @ v
        return entropy(m.head(z.mean(1)), Y[:6])

    return brought(TimmLike(), (x, Y[:6]), losses)


# Dicts that go into the model as they are ---------------------------------------------------------


@newcomer
def dict_itself() -> Owned:
    train = {"features": X, "ages": X.sum(1), "labels": Y}
    return brought(Small(lambda m, batch: m.plain(batch["features"])), train, classified)


@newcomer
def dict_and_target() -> Owned:
    loader = [(UserDict(features=X[:5]), Y[:5]), (UserDict(features=X[5:]), Y[5:])]
    return brought(Small(lambda m, batch: m.plain(batch["features"])), loader, classified)


@newcomer
def dict_by_name() -> Owned:
    return brought(Small(Small.plain), {"x": X, "label": Y}, classified)


# Structures ---------------------------------------------------------------------------------------


class VAE(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.enc, self.dec = nn.Linear(3, 4), nn.Linear(2, 3)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        mean, log_var = self.enc(x).chunk(2, 1)
        noise = torch.randn_like(mean) if self.training else torch.zeros_like(mean)
        return self.dec(mean + noise * (log_var / 2).exp()), mean, log_var


def elbo(outputs: tuple[Tensor, Tensor, Tensor], x: Tensor) -> Tensor:
    again, mean, log_var = outputs
    kl = -0.5 * (1 + log_var - mean.square() - log_var.exp()).sum(1)
    return (again - x).square().sum(1) + kl


@newcomer
def vae() -> Owned:
    return brought(VAE(), (X, X), lambda m: elbo(m(X.double()), X.double()), elbo)


class Siamese(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))

    def forward(self, left: Tensor, right: Tensor) -> dict[str, Tensor]:
        return {"left": self.net(left), "right": self.net(right)}


def contrastive(outputs: Mapping[str, Tensor], same: Tensor) -> Tensor:
    distance = (outputs["left"] - outputs["right"]).square().sum(1)
    return torch.where(same == 1, distance, (2 - distance).clamp_min(0).square())


@newcomer
def siamese() -> Owned:
    pairs, same = (X, X.flip(0)), Y % 2
    x, other = (t.double() for t in pairs)
    return brought(Siamese(), (pairs, same), lambda m: contrastive(m(x, other), same), contrastive)


@newcomer
def siamese_of_three() -> Owned:
    x, other = X.double(), X.flip(0).double()
    train = DataLoader([(*row,) for row in zip(X, X.flip(0), Y % 2, strict=True)], 4, shuffle=True)
    return brought(Siamese(), train, lambda m: contrastive(m(x, other), Y % 2), contrastive)


def detected(outputs: Tensor, targets: Mapping[str, Tensor]) -> Tensor:
    """Class and place in one output, as the targets of a detector have them in a dict."""
    own = F.cross_entropy(outputs[:, :2], targets["kind"], reduction="none")
    return own + (outputs[:, 2] - targets["place"]).square()


@newcomer
def dict_of_targets() -> Owned:
    targets = {"kind": Y % 2, "place": X[:, 0]}

    def losses(model: Small) -> Tensor:
        wide = {"kind": Y % 2, "place": X[:, 0].double()}
        return detected(model.plain(X.double()), wide)

    return brought(Small(Small.plain), (X, targets), losses, detected)


@newcomer
def tuple_of_targets() -> Owned:
    rows = [(x, (int(y) % 2, x[0])) for x, y in zip(X, Y, strict=True)]

    def loss(outputs: Tensor, targets: Any) -> Tensor:
        return detected(outputs, dict(zip(("kind", "place"), targets, strict=True)))

    train = DataLoader(rows, batch_size=4, shuffle=True)
    wide = Y % 2, X[:, 0].double()
    return brought(Small(Small.plain), train, lambda m: loss(m.plain(X.double()), wide), loss)


@newcomer
def weights_of_samples() -> Owned:
    w = torch.linspace(0.5, 2, 9)
    loss = ll.ModelLoss(
        lambda model, batch: batch.targets * entropy(model(batch.inputs[0]), batch.inputs[1])
    )
    return brought(Small(Small.plain), (X, Y, w), lambda m: w.double() * classified(m), loss)


@newcomer
def unlabelled_dict() -> Owned:
    loss = ll.ModelLoss(lambda model, batch: elbo(model(batch.inputs["x"]), batch.inputs["x"]))
    x = X.double()
    return brought(VAE(), [{"x": X[:4]}, {"x": X[4:]}], lambda m: elbo(m(x), x), loss)


class Graph:
    """Looks as a graph of PyG does."""

    def __init__(self, x: Tensor, y: int) -> None:
        self.x, self.y = x, y

    def keys(self) -> list[str]:
        return ["x", "y"]

    def __len__(self) -> int:
        return 2

    def __getitem__(self, name: str) -> Any:
        return getattr(self, name)


GRAPHS = [Graph(X[: 2 + i % 4], i % 3) for i in range(9)]


@newcomer
def graphs_by_their_places() -> Owned:
    """What the refusal of graphs says."""

    def losses(model: Any, graphs: list[Graph]) -> Tensor:
        z = torch.stack([model(g).mean(0) for g in graphs])
        return entropy(z, torch.tensor([g.y for g in graphs]))

    loss = ll.ModelLoss(lambda model, batch: losses(model, [GRAPHS[i] for i in batch.inputs]))
    model = Small(lambda m, g: m.plain(g.x.to(m.a.weight.dtype)))
    return brought(model, torch.arange(9), lambda m: losses(m, GRAPHS), loss)


# Lists, experts, lengths --------------------------------------------------------------------------


@newcomer
def list_of_samples_with_rows() -> Owned:
    train = [(x, x[:1]) for x in X]
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
    return brought(model, train, lambda m: (m(X.double()) - X[:, :1]).square()[:, 0], "mse")


@newcomer
def list_of_images_and_masks() -> Owned:
    x = torch.randn(4, 1, 3, 3)
    y = torch.randint(2, (4, 3, 3))
    train = list(zip(x, y, strict=True))

    def losses(model: nn.Module) -> Tensor:
        return entropy(model(x.double()), y).flatten(1).mean(1)

    return brought(nn.Conv2d(1, 2, 3, padding=1), train, losses)


class Experts(nn.Module):
    """Each sample goes to the one expert that the gate prefers; the last gets none."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(3, 3)
        self.experts = nn.ModuleList(nn.Linear(3, 3) for _ in range(3))
        with torch.no_grad():
            self.gate.bias.copy_(torch.tensor([0.0, 0.0, -99.0]))

    def forward(self, x: Tensor) -> Tensor:
        p = self.gate(x).softmax(1)
        best, out = p.argmax(1), torch.zeros(len(x), 3, dtype=x.dtype)
        for k, expert in enumerate(self.experts):
            own = torch.where(best == k)[0]
            out = out.index_add(0, own, expert(x[own]) * p[own, k : k + 1])
        return out


@newcomer
def experts() -> Owned:
    return brought(Experts(), (X, Y), lambda m: entropy(m(X.double()), Y))


def padded(rows: list[tuple[Tensor, Any]]) -> tuple[Tensor, Tensor]:
    """A batch as long as its longest sample."""
    pad = nn.utils.rnn.pad_sequence
    targets = [torch.as_tensor(y) for _, y in rows]
    y = torch.stack(targets) if targets[0].ndim == 0 else pad(targets, True, -100)
    return pad([x for x, _ in rows], True), y


SENTENCES = [torch.arange(1, 3 + i % 3) for i in range(7)]


class Tokens(nn.Module):
    def __init__(self, pooled: bool) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(6, 2, padding_idx=0), nn.Linear(2, 3)
        self.pooled = pooled

    def forward(self, ids: Tensor) -> Tensor:
        h = torch.tanh(self.embedding(ids)) * (ids > 0).unsqueeze(-1)
        return self.head(h.sum(1) if self.pooled else h)


@newcomer
def dynamic_padding() -> Owned:
    rows = [(s, i % 3) for i, s in enumerate(SENTENCES)]
    train = DataLoader(rows, 2, collate_fn=padded, shuffle=True)
    losses = lambda m: torch.cat([entropy(m(s[None]), torch.tensor([y])) for s, y in rows])  # noqa: E731
    return brought(Tokens(True), train, losses)


@newcomer
def dynamic_padding_of_labels() -> Owned:
    rows = [(s, s % 3) for s in SENTENCES]
    train = DataLoader(rows, 2, collate_fn=padded, shuffle=True)
    losses = lambda m: torch.stack([entropy(m(s[None])[0], y).mean() for s, y in rows])  # noqa: E731
    return brought(Tokens(False), train, losses)


# Encoder-decoders of Transformers -----------------------------------------------------------------


def texts(n: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(n)
    ids, labels = (torch.randint(3, 6, (n, 3), generator=generator) for _ in range(2))
    mask = torch.ones_like(ids)
    mask[0, 2] = 0
    labels[1, 2] = -100
    return {"input_ids": ids, "attention_mask": mask, "labels": labels}


def translated(model: nn.Module, train: dict[str, Tensor]) -> Owned:
    def losses(model: Any) -> Tensor:
        """In float64, which the model's own loss is not."""
        labels, config = train["labels"], model.config
        first = torch.full((len(labels), 1), config.decoder_start_token_id)
        begun = torch.cat([first, labels[:, :-1]], 1)
        begun = begun.where(begun != -100, config.pad_token_id)
        wide = {n: t.double() if t.is_floating_point() else t for n, t in train.items()}
        scores = model(**wide | {"labels": None, "decoder_input_ids": begun}).logits
        own = F.cross_entropy(scores.transpose(1, 2), labels, reduction="none")
        return own.sum(1) / (labels != -100).sum(1)

    return brought(model, train, losses)


SIZES: dict[str, Any] = {
    "vocab_size": 6, "d_model": 2, "pad_token_id": 1, "eos_token_id": 2, "bos_token_id": 0,
    "decoder_start_token_id": 2, "forced_eos_token_id": 2,
}  # fmt: skip
HALVES: dict[str, Any] = {
    f"{half}_{what}": count
    for half in ("encoder", "decoder")
    for what, count in (("layers", 1), ("attention_heads", 1), ("ffn_dim", 2))
}


@newcomer
def t5() -> Owned:
    from transformers import T5Config, T5ForConditionalGeneration

    config = T5Config(
        vocab_size=6, d_model=2, d_kv=2, d_ff=2, num_layers=1, num_heads=1, pad_token_id=0,
        decoder_start_token_id=0, relative_attention_num_buckets=8,
    )  # fmt: skip
    return translated(T5ForConditionalGeneration(config), texts(4))


@newcomer
def bart() -> Owned:
    from transformers import BartConfig, BartForConditionalGeneration

    config = BartConfig(max_position_embeddings=4, **SIZES, **HALVES)
    return translated(BartForConditionalGeneration(config), texts(4))


@newcomer
def marian() -> Owned:
    from transformers import MarianConfig, MarianMTModel

    config = MarianConfig(max_position_embeddings=4, **SIZES, **HALVES)
    return translated(MarianMTModel(config), texts(4))


@newcomer
def whisper() -> Owned:
    from transformers import WhisperConfig, WhisperForConditionalGeneration

    config = WhisperConfig(
        num_mel_bins=2, max_source_positions=2, max_target_positions=4, suppress_tokens=None,
        begin_suppress_tokens=None, **SIZES | {"d_model": 4}, **HALVES,
    )  # fmt: skip
    train = {"input_features": torch.randn(4, 2, 4), "labels": texts(4)["labels"]}
    return translated(WhisperForConditionalGeneration(config), train)


SLOW = ("nanogpt", "t5", "bart", "marian", "whisper")

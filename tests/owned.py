"""Networks, losses and loaders as people have them, each with its losses in plain torch."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

import lowland as ll


@dataclass(frozen=True)
class Owned:
    """What a user hands over, and what it means in plain torch."""

    model: nn.Module
    train: Any
    test: Any
    losses: Callable[[nn.Module], Tensor]  # of all training samples, (n,), by plain torch
    layer: str | None  # a layer to look at
    loss: Any = "cross_entropy"

    def problem(self, **options: Any) -> ll.Problem:
        return ll.Problem(self.model, self.loss, train=self.train, test=self.test, **options)


OWNED: dict[str, Callable[[], Owned]] = {}
SLOW = ("resnet18", "vit", "bert", "gpt2", "tagging", "lstm", "compiled")


def owned(make: Callable[[], Owned]) -> Callable[[], Owned]:
    def seeded() -> Owned:
        with torch.random.fork_rng():
            torch.manual_seed(0)
            return make()

    OWNED[make.__name__] = seeded
    return seeded


def mlp(inputs: int = 3, outputs: int = 3) -> nn.Sequential:
    layers = (nn.Linear(inputs, 5), nn.Tanh(), nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, outputs))
    return nn.Sequential(*layers)


def points(n: int, seed: int) -> Tensor:
    return torch.randn(n, 3, generator=torch.Generator().manual_seed(seed))


def labelled(n: int, seed: int) -> tuple[Tensor, Tensor]:
    x = points(n, seed)
    return x, (x[:, 0] > 0).long() + (x[:, 1] > 0).long()


def images(n: int, seed: int, channels: int, size: int) -> tuple[Tensor, Tensor]:
    y = torch.arange(n) % 3
    noise = torch.rand(n, channels, size, size, generator=torch.Generator().manual_seed(seed))
    return noise / 2 + y.view(-1, 1, 1, 1) / 5, y


def sentences(n: int, seed: int, length: int = 5, words: int = 7) -> tuple[Tensor, Tensor]:
    """Tokens, 0 where a sentence has ended, and the mask that says where."""
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(1, words, (n, length), generator=generator)
    ends = torch.randint(3, length + 1, (n,), generator=generator)
    mask = (torch.arange(length) < ends[:, None]).long()
    return tokens * mask, mask


class Rows(Dataset):
    """Samples as dicts, as the data sets of Hugging Face give them."""

    def __init__(self, **columns: Tensor) -> None:
        self.columns = columns

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def __getitem__(self, i: int) -> dict[str, Tensor]:
        return {name: column[i] for name, column in self.columns.items()}


class BasicBlock(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.downsample = None
        if stride > 1:
            convolution = nn.Conv2d(inputs, outputs, 1, stride, bias=False)
            self.downsample = nn.Sequential(convolution, nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        out = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        out += x if self.downsample is None else self.downsample(x)
        return self.relu(out)


class ResNet18(nn.Module):
    """As torchvision has it, but for its width."""

    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, width, 7, 2, 3, bias=False)
        self.bn1, self.relu = nn.BatchNorm2d(width), nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, 2, 1)
        for k in range(4):
            inputs, outputs = max(width, width * 2 ** (k - 1)), width * 2**k
            blocks = BasicBlock(inputs, outputs, 1 + (k > 0)), BasicBlock(outputs, outputs, 1)
            setattr(self, f"layer{k + 1}", nn.Sequential(*blocks))
        self.avgpool, self.fc = nn.AdaptiveAvgPool2d(1), nn.Linear(8 * width, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(self.avgpool(x).flatten(1))


@owned
def resnet18() -> Owned:
    x, y = images(8, 0, 3, 16)
    model = ResNet18(1, 3)
    with torch.no_grad():  # running statistics, as a training leaves them
        for _ in range(20):
            model.train()(x)
    return Owned(model, (x, y), images(6, 1, 3, 16), lambda m: entropy(m(x.double()), y), "fc")


class ViT(nn.Module):
    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.patch = nn.Conv2d(1, width, 4, 4)
        self.cls = nn.Parameter(torch.zeros(1, 1, width))
        self.position = nn.Parameter(torch.randn(1, 5, width) / 50)
        layer = nn.TransformerEncoderLayer(
            width, 2, 6, dropout=0.1, activation="gelu", batch_first=True, norm_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(width, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patch(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls.expand(len(x), -1, -1), x], 1) + self.position
        return self.head(self.encoder(x)[:, 0])


@owned
def vit() -> Owned:
    x, y = images(8, 0, 1, 8)
    return Owned(ViT(), (x, y), images(6, 1, 1, 8), lambda m: entropy(m(x.double()), y), "head")


@owned
def bert() -> Owned:
    from transformers import BertConfig, BertForSequenceClassification

    sizes = {"hidden_size": 4, "intermediate_size": 6, "max_position_embeddings": 6}
    config = BertConfig(
        vocab_size=7, num_hidden_layers=1, num_attention_heads=2, num_labels=2, **sizes
    )

    def loader(n: int, seed: int) -> DataLoader:
        ids, mask = sentences(n, seed)
        rows = Rows(input_ids=ids, attention_mask=mask, labels=ids.sum(1) % 2)
        return DataLoader(rows, batch_size=3, shuffle=True)

    ids, mask = sentences(8, 0)
    return Owned(
        BertForSequenceClassification(config),
        loader(8, 0),
        loader(6, 1),
        lambda m: entropy(m(input_ids=ids, attention_mask=mask).logits, ids.sum(1) % 2),
        "classifier",
    )


@owned
def gpt2() -> Owned:
    from transformers import GPT2Config, GPT2LMHeadModel

    sizes = {"n_embd": 4, "n_layer": 1, "n_head": 2, "n_inner": 4, "n_positions": 6}
    config = GPT2Config(vocab_size=7, bos_token_id=0, eos_token_id=0, **sizes)

    def batch(n: int, seed: int) -> dict[str, Tensor]:
        ids, mask = sentences(n, seed)
        return {"input_ids": ids, "attention_mask": mask, "labels": ids.where(mask == 1, -100)}

    train = batch(8, 0)

    def losses(model: nn.Module) -> Tensor:
        """In float64, which the model's own loss is not."""
        labels = train["labels"][:, 1:]
        scores = model(input_ids=train["input_ids"], attention_mask=train["attention_mask"]).logits
        each = F.cross_entropy(scores[:, :-1].transpose(1, 2), labels, reduction="none")
        return each.sum(1) / (labels != -100).sum(1)

    return Owned(GPT2LMHeadModel(config), train, batch(6, 1), losses, "transformer.h.0.mlp.c_proj")


class Tagger(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(7, 3)
        self.lstm = nn.LSTM(3, 2, batch_first=True, bidirectional=True)
        self.head = nn.Linear(4, 3)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.lstm(self.embedding(tokens))[0])  # (n, T, classes)


@owned
def tagging() -> Owned:
    def tagged(n: int, seed: int) -> tuple[Tensor, Tensor]:
        ids, mask = sentences(n, seed)
        return ids, (ids % 3).where(mask == 1, -100)

    ids, tags = tagged(8, 0)

    def losses(model: nn.Module) -> Tensor:
        each = F.cross_entropy(model(ids).transpose(1, 2), tags, reduction="none")
        return each.sum(1) / (tags != -100).sum(1)

    return Owned(Tagger(), (ids, tags), tagged(6, 1), losses, "head")


class Sentiment(nn.Module):
    """A first state is made in the forward pass, as tutorials have it."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.lstm = nn.Embedding(7, 3), nn.LSTM(3, 2, batch_first=True)
        self.head = nn.Linear(2, 2)

    def forward(self, tokens: Tensor) -> Tensor:
        states = torch.zeros(1, len(tokens), 2), torch.zeros(1, len(tokens), 2)
        return self.head(self.lstm(self.embedding(tokens), states)[0][:, -1])


@owned
def lstm() -> Owned:
    ids = sentences(8, 0)[0]
    test = sentences(6, 1)[0]

    def losses(model: nn.Module) -> Tensor:
        h = model.lstm(model.embedding(ids))[0][:, -1]  # zeros are the default
        return entropy(model.head(h), ids.sum(1) % 2)

    return Owned(Sentiment(), (ids, ids.sum(1) % 2), (test, test.sum(1) % 2), losses, "head")


@owned
def regression() -> Owned:
    x, test = points(8, 0), points(6, 1)
    y = x[:, :1].sin()

    def losses(model: nn.Module) -> Tensor:
        return (model(x.double()) - y).square().mean(1)

    return Owned(mlp(3, 1), (x, y), (test, test[:, :1].sin()), losses, "2", "mse")


@owned
def autoencoder() -> Owned:
    x, test = images(8, 0, 1, 3)[0], images(6, 1, 1, 3)[0]
    model = nn.Sequential(
        nn.Flatten(), nn.Linear(9, 4), nn.ReLU(), nn.Linear(4, 9), nn.Unflatten(1, (1, 3, 3))
    )

    def losses(model: nn.Module) -> Tensor:
        return (model(x.double()) - x).square().flatten(1).mean(1)

    return Owned(model, (x, x), (test, test), losses, "3", nn.MSELoss())


def residual(model: nn.Module, x: Tensor) -> Tensor:
    """Of u'' = -pi^2 sin(pi x)."""
    x = x.detach().requires_grad_()
    (slope,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
    (bend,) = torch.autograd.grad(slope.sum(), x, create_graph=True)
    return (bend + torch.pi**2 * torch.sin(torch.pi * x)).square().squeeze(1)


@owned
def pinn() -> Owned:
    x = torch.linspace(0, 1, 8)[:, None]
    loss = ll.ModelLoss(lambda model, batch: residual(model, batch.inputs))
    test = torch.rand(6, 1)
    return Owned(mlp(1, 1), x, test, lambda m: residual(m, x.double()), None, loss)


@owned
def binary() -> Owned:
    x, test = points(8, 0), points(6, 1)
    y = (x[:, 0] > 0).long()
    weight = torch.tensor([2.0])

    def losses(model: nn.Module) -> Tensor:
        p = model(x.double()).sigmoid()[:, 0]
        return -2 * y * p.log() - (1 - y) * (1 - p).log()

    loss = nn.BCEWithLogitsLoss(pos_weight=weight)
    return Owned(mlp(3, 1), (x, y), (test, (test[:, 0] > 0).long()), losses, "2", loss)


@owned
def multi_label() -> Owned:
    x, test = points(8, 0), points(6, 1)
    y = (x > 0).float()

    def losses(model: nn.Module) -> Tensor:
        p = model(x.double()).sigmoid()
        return -(y * p.log() + (1 - y) * (1 - p).log()).mean(1)

    return Owned(mlp(), (x, y), (test, (test > 0).float()), losses, "2", nn.BCEWithLogitsLoss())


@owned
def class_weights() -> Owned:
    x, y = labelled(8, 0)
    weight = torch.tensor([1.0, 2.0, 0.5])

    def losses(model: nn.Module) -> Tensor:
        return entropy(model(x.double()), y) * weight[y] / weight[y].mean()

    loss = nn.CrossEntropyLoss(weight=weight)
    return Owned(mlp(), (x, y), labelled(6, 1), losses, "2", loss)


@owned
def label_smoothing() -> Owned:
    x, y = labelled(8, 0)

    def losses(model: nn.Module) -> Tensor:
        share = 0.9 * F.one_hot(y, 3).double() + 0.1 / 3
        return -(share * model(x.double()).log_softmax(1)).sum(1)

    loss = nn.CrossEntropyLoss(label_smoothing=0.1)
    return Owned(mlp(), (x, y), labelled(6, 1), losses, "2", loss)


@owned
def frozen() -> Owned:
    x, y = labelled(8, 0)
    model = mlp()
    model[0].requires_grad_(False)
    return Owned(model, (x, y), labelled(6, 1), lambda m: entropy(m(x.double()), y), "2")


class Cast(nn.Module):
    """Names a precision in its forward pass."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.net, self.dtype = nn.Sequential(nn.Flatten(), nn.Linear(9, 4), nn.Tanh()), dtype
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.net(x.to(self.dtype) / 255))


def cast(dtype: torch.dtype) -> Owned:
    (x, y), (test, labels) = images(8, 0, 1, 3), images(6, 1, 1, 3)
    x, test = ((256 * t).to(torch.uint8) for t in (x, test))

    def losses(model: Any) -> Tensor:
        return entropy(model.head(model.net(x.double() / 255)), y)

    return Owned(Cast(dtype).to(dtype), (x, y), (test, labels), losses, "head")


@owned
def uint8_images() -> Owned:
    return cast(torch.float32)


@owned
def bfloat16() -> Owned:
    return cast(torch.bfloat16)


@owned
def compiled() -> Owned:
    x, y = labelled(8, 0)
    model = torch.compile(mlp())
    return Owned(model, (x, y), labelled(6, 1), lambda m: entropy(m(x.double()), y), "2")


@owned
def loader_with_workers() -> Owned:
    x, y = labelled(8, 0)
    train = DataLoader(TensorDataset(x, y), 3, shuffle=True, num_workers=2, drop_last=True)
    test = DataLoader(TensorDataset(*labelled(6, 1)), 4)
    return Owned(mlp(), train, test, lambda m: entropy(m(x.double()), y), "2")


class TwoInputs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = mlp(4)

    def forward(self, image: Tensor, age: Tensor) -> Tensor:
        return self.net(torch.cat([image, age[:, None]], 1))


@owned
def dict_loader() -> Owned:
    def loader(n: int, seed: int) -> DataLoader:
        x, y = labelled(n, seed)
        return DataLoader(Rows(image=x, age=x.sum(1), label=y), 3, shuffle=True)

    x, y = labelled(8, 0)
    x64 = x.double()

    def losses(model: nn.Module) -> Tensor:
        return entropy(model(image=x64, age=x.sum(1).double()), y)

    return Owned(TwoInputs(), loader(8, 0), loader(6, 1), losses, "net.2")


def entropy(scores: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(scores, labels, reduction="none")

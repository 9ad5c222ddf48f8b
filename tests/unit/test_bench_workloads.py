"""The models that benchmarks train: those of papers have the papers' sizes, and a preset chooses among them."""

from __future__ import annotations

import math
from collections.abc import Callable

import click
import pytest
import torch
from click.testing import CliRunner
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from ddptrace.bench.workloads import WORKLOADS, Bert, Gpt2, ResNet, nbytes, workload
from ddptrace.cli.bench import bench, trained
from ddptrace.errors import DdptraceError

# torchvision's resnet50; BertForMaskedLM of bert-large-uncased; GPT-2 XL with one table of tokens
PARAMETERS = {"resnet50": 25_557_032, "bert": 335_174_458, "gpt2-xl": 1_557_611_200}


def on_meta(name: str) -> nn.Module:
    """Shapes without numbers: nothing is allocated."""
    with torch.device("meta"):
        return WORKLOADS[name].make()


def batch(name: str, seed: int, size: int = 2) -> tuple[torch.Tensor, ...]:
    return WORKLOADS[name].batch(torch.Generator().manual_seed(seed), size)


@pytest.mark.parametrize("name", PARAMETERS)
def test_a_papers_model_has_the_papers_number_of_parameters(name: str) -> None:
    model = on_meta(name)
    assert sum(parameter.numel() for parameter in model.parameters()) == PARAMETERS[name]
    assert nbytes(model) == 4 * PARAMETERS[name]


def test_resnet50_has_161_gradients_and_computes_as_much_as_torchvisions() -> None:
    model, images = on_meta("resnet50"), [part.to("meta") for part in batch("resnet50", 0, 1)]
    with FlopCounterMode(display=False) as counter:
        model(*images)
    assert len(list(model.parameters())) == 161
    assert counter.get_total_flops() == pytest.approx(2 * 4.089e9, rel=0.005), "4.09 GMAC, with the stride in the 3×3"


@pytest.mark.parametrize("name", WORKLOADS)
def test_every_models_whole_batch_goes_through_it_to_one_loss(name: str) -> None:
    work = WORKLOADS[name]
    loss = on_meta(name)(*(part.to("meta") for part in batch(name, 0, work.batch_size)))
    assert work.name == name and loss.shape == ()


@pytest.mark.parametrize("name", WORKLOADS)
def test_a_batch_is_the_seeds_and_of_the_size_asked_for(name: str) -> None:
    one, again, other = batch(name, 1), batch(name, 1), batch(name, 2)
    assert all(map(torch.equal, one, again))
    assert not torch.equal(one[0], other[0])
    assert {len(part) for part in one} == {2}


SMALL: dict[str, Callable[[], nn.Module]] = {
    "gpt": WORKLOADS["gpt"].make,
    "mlp": WORKLOADS["mlp"].make,
    "convnet": WORKLOADS["convnet"].make,
    "bert": lambda: Bert(layers=2, width=32, heads=4),
    "gpt2-xl": lambda: Gpt2(layers=2, width=32, heads=4),
}


@pytest.mark.parametrize("name", SMALL)
def test_every_parameter_gets_a_gradient(name: str) -> None:
    torch.manual_seed(0)
    model = SMALL[name]()
    model(*batch(name, 1, 1)).backward()
    without = [key for key, value in model.named_parameters() if value.grad is None or not value.grad.any()]
    assert not without


@pytest.mark.parametrize(("name", "vocabulary"), [("bert", 30522), ("gpt2-xl", 50257)])
def test_an_untrained_transformer_is_as_good_as_guessing(name: str, vocabulary: int) -> None:
    torch.manual_seed(0)
    assert float(SMALL[name]()(*batch(name, 1, 1)).detach()) == pytest.approx(math.log(vocabulary), rel=0.05)


def test_gpt2_does_not_see_the_tokens_that_come_after() -> None:
    torch.manual_seed(0)
    model = Gpt2(layers=2, width=32, heads=4).eval()
    tokens, targets = batch("gpt2-xl", 1, 1)
    changed, first = tokens.clone(), targets.clone()
    changed[:, 512:] = 0
    first[:, 512:] = -100  # of no account in the loss
    torch.testing.assert_close(model(tokens, first), model(changed, first))


def test_the_convnet_has_many_small_parameters_and_buffers() -> None:
    model = on_meta("convnet")
    sizes = [parameter.numel() for parameter in model.parameters()]
    assert isinstance(model, ResNet)
    assert len(sizes) >= 60 and sum(size < 1000 for size in sizes) > len(sizes) / 2
    assert any(buffer.is_floating_point() for buffer in model.buffers())
    assert nbytes(model) > 15_000_000, "buckets of 1, 5 and 25 MiB are to differ"


def test_a_name_that_is_none_ends_in_a_sentence_with_all_names() -> None:
    with pytest.raises(
        DdptraceError, match="no workload is called 'vgg'; choose from: gpt, mlp, convnet, resnet50, bert"
    ):
        workload("vgg")


def chosen(flag: str, *asked: str) -> str:
    """What a command with this flag gets."""

    @click.command()
    @trained(flag, "gpt,mlp" if flag.endswith("s") else "gpt", "resnet50,bert" if flag.endswith("s") else "bert")
    def command(**given: object) -> None:
        click.echo(repr(given))

    result = CliRunner().invoke(command, asked)
    return result.output.strip()


def test_a_preset_chooses_the_models_and_a_name_overrides_it() -> None:
    assert chosen("--workload") == "{'workload': 'gpt'}"
    assert chosen("--workload", "--preset", "paper") == "{'workload': 'bert'}"
    assert chosen("--workload", "--workload", "mlp", "--preset", "paper") == "{'workload': 'mlp'}"
    assert chosen("--models") == "{'models': ('gpt', 'mlp')}"
    assert chosen("--models", "--preset", "paper") == "{'models': ('resnet50', 'bert')}"
    assert chosen("--models", "--models", "mlp, convnet") == "{'models': ('mlp', 'convnet')}"
    assert "'paper'" in chosen("--workload", "--preset", "big")


@pytest.mark.parametrize("preset", ["here", "paper"])
def test_every_command_that_trains_names_models_that_there_are(preset: str) -> None:
    asked = []
    for command in bench.commands.values():
        options = {option.name: option for option in command.params}
        if "preset" not in options:
            continue
        option = options.get("workload") or options["models"]
        ctx = click.Context(command)
        ctx.meta["ddptrace.preset"] = preset
        value = option.process_value(ctx, None)
        asked += [value] if isinstance(value, str) else list(value)
    assert len(asked) >= 3
    assert set(asked) <= set(WORKLOADS)

"""Properties of every network of `MODELS`, on small inputs."""

import pytest
import torch
from torch import nn
from torch.func import functional_call, grad, jvp

from calibrant.models import MODELS, Network, build

# Large networks in narrow form: the same code, in milliseconds.
NARROW = {
    "resnet18": {"width": 0.125},
    "resnet50": {"width": 0.0625},
    "wide_resnet": {"depth": 10, "width": 1, "dropout": 0.1},
    "vgg16": {"width": 0.0625},
    "densenet40": {"growth": 4},
    "densenet121": {"growth": 4},
    "unet": {"width": 0.25},
    "text_cnn": {"dimension": 8, "channels": 16, "hidden": 8},
}
# Float32 through up to 121 layers, whose kernels add in other orders on other machines.
SINGLE = {"atol": 1e-4, "rtol": 1e-4}
SIZE, CLASSES, EXAMPLES, LENGTH, VOCABULARY = 9, 5, 6, 12, 30


def made(name, **settings):
    text = MODELS[name].kind == "text"
    return build(
        name,
        classes=CLASSES,
        shape=(LENGTH,) if text else (3, SIZE, SIZE),
        vocabulary=VOCABULARY if text else None,
        **{**NARROW.get(name, {}), **settings},
    )


def inputs(name, dtype=torch.float32):
    generator = torch.Generator().manual_seed(1)
    if MODELS[name].kind == "text":
        return torch.randint(0, VOCABULARY, (EXAMPLES, LENGTH), generator=generator)
    return torch.randn(EXAMPLES, 3, SIZE, SIZE, generator=generator, dtype=dtype)


def settled(name, **settings):
    """In evaluation mode, with batch norm statistics of one batch."""
    network = made(name, **settings)
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.momentum = 1.0
    torch.manual_seed(5)  # Dropout.
    with torch.no_grad():
        network(inputs(name))
    return network.eval()


def loss_of(name, logits):
    dense = MODELS[name].kind == "masks"
    labels = torch.arange(EXAMPLES) % CLASSES
    labels = labels[:, None, None].expand(-1, SIZE, SIZE) if dense else labels
    return nn.functional.cross_entropy(logits, labels)


@pytest.mark.parametrize("name", MODELS)
class TestEveryNetwork:
    def test_its_logits_are_the_head_of_the_features_of_each_example(self, name):
        network, x = settled(name), inputs(name)
        logits, features = network(x), network.features(x)
        dense = (SIZE, SIZE) if MODELS[name].kind == "masks" else ()
        assert logits.shape == (EXAMPLES, CLASSES, *dense)
        assert isinstance(network, Network)
        torch.testing.assert_close(network.head(features), logits, **SINGLE)
        torch.testing.assert_close(network(x[:2]), logits[:2], **SINGLE)
        assert MODELS[name].meaning
        assert "\n" not in MODELS[name].meaning

    def test_every_parameter_has_a_gradient(self, name):
        network = made(name)
        loss_of(name, network(inputs(name))).backward()
        missing = [key for key, p in network.named_parameters() if not p.grad.abs().sum() > 0]
        assert not missing

    def test_weights_depend_on_the_seed_alone(self, name):
        before = torch.get_rng_state()
        first, again, other = (made(name, seed=seed).state_dict() for seed in (3, 3, 4))
        assert all(torch.equal(first[key], again[key]) for key in first)
        assert any(not torch.equal(first[key], other[key]) for key in first)
        assert torch.equal(before, torch.get_rng_state())

    def test_channels_last_gives_the_same_logits(self, name):
        network, x = settled(name), inputs(name)
        plain = network(x)
        if x.ndim == 4:
            x = x.to(memory_format=torch.channels_last)
        network = network.to(memory_format=torch.channels_last)
        torch.testing.assert_close(network(x), plain, **SINGLE)

    def test_works_in_double_precision(self, name):
        single = settled(name)(inputs(name))
        x = inputs(name)
        double = settled(name).double()(x.double() if x.is_floating_point() else x)
        assert double.dtype == torch.float64
        torch.testing.assert_close(single.double(), double, **SINGLE)

    def test_can_be_called_with_other_weights(self, name):
        network, x = settled(name), inputs(name)
        other = settled(name, seed=9)
        found = functional_call(network, other.state_dict(), (x,))
        torch.testing.assert_close(found, other(x), **SINGLE)

    def test_has_the_same_hessian_product_by_forward_and_by_reverse_mode(self, name):
        network, x = settled(name).double(), inputs(name, torch.float64)
        weights = {key: p.detach().requires_grad_() for key, p in network.named_parameters()}
        tangent = {key: torch.randn_like(p) for key, p in weights.items()}

        def loss(weights):
            return loss_of(name, functional_call(network, weights, (x,)))

        _, forward = jvp(grad(loss), (weights,), (tangent,))
        gradients = torch.autograd.grad(loss(weights), list(weights.values()), create_graph=True)
        inner = sum((a * b).sum() for a, b in zip(gradients, tangent.values(), strict=True))
        products = torch.autograd.grad(inner, list(weights.values()))
        for key, reverse in zip(weights, products, strict=True):
            torch.testing.assert_close(forward[key], reverse, rtol=1e-6, atol=1e-9)

    def test_starts_with_zero_biases_and_identity_norms(self, name):
        for module in made(name).modules():
            if isinstance(module, nn.BatchNorm2d):
                assert (module.weight == 1).all()
            if isinstance(getattr(module, "bias", None), torch.Tensor):
                assert (module.bias == 0).all()


@pytest.mark.parametrize("name", [name for name in MODELS if MODELS[name].kind == "images"])
@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 1, 1), (2, 5, 7)])
def test_images_of_any_size_and_number_of_channels_are_supported(name, shape):
    network = build(name, classes=3, shape=shape, **NARROW.get(name, {})).eval()
    assert network(torch.randn(2, *shape)).shape == (2, 3)


@pytest.mark.parametrize("size", [(1, 1), (7, 5), (13, 16), (32, 32)])
def test_unet_has_logits_for_every_pixel_of_an_image_of_any_size(size):
    network = build("unet", classes=4, shape=(3, *size), width=0.5).eval()
    x = torch.randn(2, 3, *size)
    assert network.features(x).shape == (2, 8, *size)
    assert network(x).shape == (2, 4, *size)


def test_convolutions_start_with_the_variance_of_he():
    for module in build("resnet18", classes=10, shape=(3, 32, 32)).modules():
        if isinstance(module, nn.Conv2d) and module.weight.numel() > 50_000:
            fan_out = module.out_channels * module.kernel_size[0] ** 2
            assert module.weight.std().item() == pytest.approx((2 / fan_out) ** 0.5, rel=0.02)


def test_shortcut_a_takes_every_second_pixel_and_adds_zero_channels():
    network = build("resnet8", classes=2, shape=(3, 8, 8))
    shortcut = network.blocks[1].shortcut
    x = torch.randn(2, 16, 7, 8)
    out = shortcut(x)
    assert torch.equal(out[:, :16], x[:, :, ::2, ::2])
    assert (out[:, 16:] == 0).all()
    assert out.shape == (2, 32, 4, 4)
    assert not list(shortcut.parameters())


def test_a_residual_block_with_zero_convolutions_is_its_shortcut():
    network = build("resnet8", classes=2, shape=(3, 8, 8)).eval()
    for block in network.blocks:
        nn.init.zeros_(block.conv2.weight)
    x = torch.randn(2, 3, 8, 8)
    stem = torch.relu(network.norm(network.conv(x)))
    expected = nn.functional.pad(stem[:, :, ::4, ::4].mean((2, 3)), (0, 48))
    torch.testing.assert_close(network.features(x), expected)


def test_a_changing_shortcut_of_a_wide_network_starts_after_the_first_activation():
    network = build("wide_resnet", classes=2, shape=(3, 4, 4), depth=10, width=2).eval()
    block, x = network.blocks[0], torch.randn(2, 16, 4, 4)
    nn.init.zeros_(block.conv2.weight)
    torch.testing.assert_close(block(x), block.shortcut(torch.relu(block.norm1(x))))


def test_dropout_acts_in_training_only():
    network = build("wide_resnet", classes=2, shape=(3, 8, 8), depth=10, width=1, dropout=0.5)
    x = torch.randn(4, 3, 8, 8)
    assert not torch.allclose(network(x), network(x), atol=1e-3)
    network.eval()
    torch.testing.assert_close(network(x), network(x), **SINGLE)


def test_an_mlp_flattens_in_one_order_and_without_hidden_layers_is_logistic_regression():
    network = build("mlp", classes=3, shape=(3, 4, 4), hidden=[7], activation="relu")
    x = torch.randn(5, 3, 4, 4)
    other = network(x.to(memory_format=torch.channels_last))
    torch.testing.assert_close(network(x), other)
    by_hand = torch.relu(x.reshape(5, 48) @ network.layers[0].weight.T) @ network.head.weight.T
    torch.testing.assert_close(network(x), by_hand)
    network = build("mlp", classes=3, shape=(6,), hidden=())
    x = torch.randn(5, 6)
    expected = nn.functional.linear(x, network.head.weight, network.head.bias)
    torch.testing.assert_close(network(x), expected)


@pytest.mark.parametrize("name", ["text_cnn", "bag_of_embeddings"])
class TestTextNetworks:
    def test_padding_changes_nothing(self, name):
        network = made(name).eval()
        x = inputs(name).clamp(min=1)
        padded = torch.cat([x, torch.zeros(EXAMPLES, 9, dtype=torch.int64)], 1)
        torch.testing.assert_close(network(padded), network(x))
        assert network(torch.zeros(2, LENGTH, dtype=torch.int64)).isfinite().all()
        # The embedding of padding is zero and has no gradient.
        network = made(name)
        loss_of(name, network(inputs(name))).backward()
        assert (network.embedding.weight[0] == 0).all()
        assert (network.embedding.weight.grad[0] == 0).all()


@pytest.mark.parametrize("stride", [1, 2, 3])
def test_a_strided_text_network_ignores_padding(stride):
    network = made("text_cnn", stride=stride, kernels=(3, 5), hidden=0).eval()
    assert network.hidden is None
    for length in (1, 2, 5, 11):
        x = inputs("text_cnn").clamp(min=1)[:, :length]
        padded = torch.cat([x, torch.zeros(EXAMPLES, 7, dtype=torch.int64)], 1)
        torch.testing.assert_close(network(padded), network(x))


def test_a_bag_is_the_mean_of_the_tokens_without_padding():
    network = made("bag_of_embeddings")
    table = network.embedding.weight
    x = torch.tensor([[4, 7, 0, 0], [3, 0, 3, 9]])
    expected = torch.stack([(table[4] + table[7]) / 2, (2 * table[3] + table[9]) / 3])
    torch.testing.assert_close(network.features(x), expected)

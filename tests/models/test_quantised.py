import torch

from specray.models.quantised import dequantise, quantise


def test_matrices_come_back_within_half_a_step_of_their_row() -> None:
    torch.manual_seed(0)
    weight = torch.randn(5, 40) * torch.tensor([0.01, 1, 3, 100, 1e-5])[:, None]

    restored = dequantise(quantise({"layer.weight": weight}))["layer.weight"]

    step = weight.abs().amax(dim=1, keepdim=True) / 127
    assert ((restored - weight).abs() <= step * 0.501).all()


def test_a_row_of_zeros_stays_one() -> None:
    assert not dequantise(quantise({"w": torch.zeros(2, 3)}))["w"].any()


def test_vectors_are_kept_as_they_are() -> None:
    norm = torch.rand(7)

    packed = quantise({"norm.weight": norm})

    assert packed.keys() == {"norm.weight"}
    assert torch.equal(dequantise(packed)["norm.weight"], norm)


def test_a_quarter_of_the_bytes() -> None:
    packed = quantise({"w": torch.randn(64, 256)})

    assert sum(part.nbytes for part in packed.values()) < 0.27 * 64 * 256 * 4

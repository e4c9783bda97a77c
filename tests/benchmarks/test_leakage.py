"""The probes of benchmarks/leakage.py, where the answer is known."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from benchmarks import leakage
from protofed.experiment import Experiment
from protofed.prototypes import Prototypes

SHAPE = (1, 4, 4)
RESULTS = Path(__file__).parents[2] / "docs" / "results" / "leakage.json"


def images(number: int, seed: int) -> Tensor:
    return torch.rand(number, *SHAPE, generator=torch.Generator().manual_seed(seed))


def linear(x: Tensor) -> Tensor:
    """An encoder that loses nothing."""
    return x.flatten(1) @ torch.randn(16, 24, generator=torch.Generator().manual_seed(1))


def test_the_image_behind_a_linear_feature_is_found() -> None:
    secret, decoys, shadow = images(5, 2), images(100, 3), images(80, 4)
    starts = torch.stack([images(5, 5), images(5, 6)])
    attacks = {
        "decoder": leakage.decoder(linear(shadow), shadow, torch.arange(80) % 2, 0.0)(
            linear(secret), torch.arange(5) % 2
        ),
        "optimised": leakage.optimised(linear, linear(secret), starts),
    }
    for attack, guesses in attacks.items():
        for guess, image in zip(guesses, secret, strict=True):
            assert leakage.hits(guess, image[None], decoys).all(), attack
            assert leakage.closeness(guess, image[None]) > 25, attack


def test_a_guess_that_knows_nothing_hits_by_chance() -> None:
    found = [
        leakage.hits(images(1, 3 * trial)[0], images(10, 3 * trial + 1), images(100, 3 * trial + 2))
        for trial in range(300)
    ]
    assert float(torch.cat(found).double().mean()) == pytest.approx(1 / 101, abs=0.006)


def test_membership_of_the_like_is_a_coin_toss_and_of_the_unlike_is_seen() -> None:
    draws = torch.Generator().manual_seed(0)
    scores, others = torch.randn(2000, generator=draws), torch.randn(2000, generator=draws)
    assert float(leakage.above(scores, others).mean()) == pytest.approx(0.5, abs=0.03)
    assert float(leakage.told(scores, others).double().mean()) == pytest.approx(0.01, abs=0.01)
    assert leakage.above(scores + 10, others).mean() == 1
    assert leakage.told(scores + 10, others).all()


def test_scores_that_are_all_alike_tell_nothing() -> None:
    alike = torch.zeros(7)
    assert leakage.above(alike, alike).tolist() == [0.5] * 7
    assert not leakage.told(alike, alike).any()


@pytest.mark.parametrize("number", [1, 2, 4])
def test_the_first_layer_holds_the_images_of_a_step(number: int) -> None:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        first, head = nn.Linear(16, 1024), nn.Linear(1024, 4)
    secret = images(number, 7).flatten(1) - 0.5
    before = [value.detach().clone() for value in first.parameters()]
    loss = nn.functional.cross_entropy(head(first(secret).relu()), torch.arange(number))
    torch.autograd.backward(loss)
    torch.optim.SGD(first.parameters(), lr=0.1).step()
    weight, bias = (after.detach() - then for after, then in zip(first.parameters(), before, strict=True))
    found = leakage.inverted(weight, bias, number)
    gaps = torch.cdist(secret, found).amin(1)
    assert float(gaps.max()) < 0.01


def test_protections_clip_add_noise_and_withhold() -> None:
    draws = torch.Generator().manual_seed(0)
    vectors = torch.tensor([[3.0, 4.0], [0.3, 0.4]])
    torch.testing.assert_close(leakage.clipped(vectors, 1.0), torch.tensor([[0.6, 0.8], [0.3, 0.4]]))
    noise = leakage.noised(torch.zeros(1000, 50), 2.0, 0.5, draws)
    assert float(noise.std()) == pytest.approx(1.0, rel=0.02)
    found = Prototypes(torch.ones(1, 3, 4), torch.tensor([[1.0, 2.0, 5.0]]))
    sent = leakage.protected(found, leakage.Protection(least=2), 1.0, draws)
    assert sent.counts.tolist() == [[0, 2, 5]]
    assert sent.vectors[0].any(-1).tolist() == [False, True, True]


@pytest.mark.parametrize(
    ("method", "params"), [("fedproto", {}), ("mp-fedcl", {"k": 2}), ("fedplvm", {"lam": 1.0}), ("fedplcc", {})]
)
def test_it_is_known_who_is_behind_an_upload_and_one_sample_is_its_feature(method: str, params: dict[str, Any]) -> None:
    counts = torch.tensor([[1, 2, 5, 20] + [0] * 6, [20, 5, 2, 1] + [0] * 6])
    place = leakage.world("digits", None, counts, 0)
    experiment = Experiment(
        method=method, params=params, clients=2, rounds=1, batch_size=8, engine="sequential", device="cpu"
    )
    played = leakage.play(experiment, place.federation)
    for client, label in counts.nonzero().tolist():
        inside = leakage.who_is_in(played, client, label)  # it checks that the members' mean is what was sent
        assert inside.sum(0).tolist() == [1] * int(counts[client, label])
    ((_, sent),) = played.uploads.prototypes.items()
    trained = played.trained
    feature = trained.features[0][trained.labels[0] == 0]
    torch.testing.assert_close(sent.vectors[0, 0, :1], feature)


def test_what_the_server_has_is_nobodys() -> None:
    place = leakage.world("digits", None, torch.full((2, 10), 3), 0)
    held = {image.numpy().tobytes() for client in place.federation.clients for image in client.train.x / 255}
    decoys = {image.numpy().tobytes() for image in place.decoys.flatten(0, 1)}
    shadow = {image.numpy().tobytes() for image in place.shadow.x / 255}
    assert len(held) == 60
    assert not held & decoys
    assert not held & shadow
    assert not decoys & shadow


def test_weights_of_one_step_are_inverted_in_a_real_run() -> None:
    found = leakage.measure("fedavg, a step with 2", "digits", None, "mlp", 0)["a step"]
    assert found["as it is"]["hit, analytic"] == 1
    assert found["as it is"]["psnr, analytic"] > 40
    assert found["noise 0.1"]["hit, analytic"] < 0.2


def test_the_page_shows_what_was_measured(tmp_path: Path) -> None:
    page, results = tmp_path / "security.md", tmp_path / "leakage.json"
    shutil.copyfile(RESULTS, results)
    assert leakage.main(["--out", str(results), "--page", str(page)]) == 0  # all is there, so nothing is measured
    text = page.read_text("utf-8")
    assert text.startswith("# Security")
    marked = text[text.index(leakage.BEGIN) : text.index(leakage.END)]
    assert marked in RESULTS.parent.parent.joinpath("leakage.md").read_text("utf-8")
    settings = {name.rsplit("/", 2)[0] for name in json.loads(RESULTS.read_text("utf-8"))}
    for setting in settings:
        assert all(
            holds for _, holds in leakage.claims(leakage.Results(json.loads(RESULTS.read_text("utf-8")), setting))
        )

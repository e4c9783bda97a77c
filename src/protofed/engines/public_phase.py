"""Clients that look at public images before a round: each model steps towards what all make of each batch."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from protofed.data.images import fit
from protofed.engines.base import Engine
from protofed.messages import Broadcast, Traffic, Upload
from protofed.methods.base import Clock, PublicExchange
from protofed.models.net import Net
from protofed.randomness import generator, step_keys


class PublicPhase:
    """The clients of an engine that take part in a round, while they look at public images.

    They begin with the models of their last turns. What the server makes of these models is what everybody trains
    from. Their way to it is not counted: it replaces that of the trained models at the end of the round, which only
    evaluation asks for.
    """

    def __init__(
        self,
        engine: Engine,
        method: PublicExchange,
        public: Tensor,
        who: Sequence[int],
        sent: Broadcast,
        clock: Clock,
    ) -> None:
        """`public` are unlabelled images, [n, c, h, w]; `sent` is what clients without a turn yet begin with."""
        self.engine, self.method, self.public, self.clock = engine, method, public, clock
        self.who, self.left_out, self.traffic = tuple(who), dict[int, str](), Traffic()
        received = engine.receive(who, sent)
        self.present = engine.present(received)
        order = torch.randperm(len(public), generator=generator(engine.experiment.seed, "public", clock.round))
        self.batches = [rows for rows in torch.split(order, method.public_batch) if len(rows) > 1]
        self.models = [engine.latest(group, rows, received, clock) for group, rows in self.present]

    @property
    def number_of_batches(self) -> int:
        """How many batches the public images make."""
        return len(self.batches)

    def outputs(self, number: int) -> Upload:
        """What the clients send about a batch."""
        views = zip(self.present, self.models, self._views(number), strict=True)
        made = [self.method.public_upload(*self.engine.forward(group, state, x)) for (group, _), state, x in views]
        uploads = self.engine.gathered(self.present, made)
        self.traffic += Traffic(up=sum(uploads.sizes()))
        return uploads

    def learn(self, number: int, answer: Broadcast) -> None:
        """One step of every model on a batch, towards what the server has answered."""
        self.traffic += Traffic(down=len(self.who) * answer.size())
        for place, ((group, rows), x) in enumerate(zip(self.present, self._views(number), strict=True)):
            keys = step_keys(self.engine.keys(group, rows, "public", self.clock), 1, number).squeeze(-1)
            loss = partial(self._loss, x, answer)
            self.models[place] = self.engine.step_on(group, self.models[place], loss, keys, self.clock)

    def _loss(self, x: Tensor, answer: Broadcast, model: Net) -> Tensor:
        return self.method.public_loss(model, x, answer)

    def weights(self) -> Upload:
        """The models after the public images, as far as the method shares them."""
        made = []
        for (group, rows), state in zip(self.present, self.models, strict=True):
            names = self.method.shared(state)
            shared = {name: value for name, value in state.items() if name in names}
            samples = self.engine.send(torch.tensor([group.sizes[row] for row in rows]))
            made.append(Upload(shared, {}, {"samples": samples}))
        return self.engine.gathered(self.present, made)

    def _views(self, number: int) -> list[Tensor]:
        """A batch as the models of each group see it."""
        images = self.public[self.batches[number]]
        return [group.inputs(fit(images, group.shape), 0) for group, _ in self.present]

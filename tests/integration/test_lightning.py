"""Lightning's Trainer on ranks started by horovodrun."""

from importlib.util import find_spec

import pytest
from jobs import Job

# Not imported here, because that takes as long as the test.
pytestmark = pytest.mark.skipif(find_spec("lightning") is None, reason="lightning is not installed")

MODULE = """
    import lightning.pytorch as pl
    from horovod.lightning import RondeStrategy

    class Line(pl.LightningModule):
        def __init__(self):
            super().__init__()
            # Different on every rank until the strategy synchronizes them.
            torch.manual_seed(RANK)
            self.layer = torch.nn.Linear(3, 1)
            self.losses = []
            self.seen = 0

        def training_step(self, batch, _):
            inputs, targets = batch
            self.seen += len(inputs)
            loss = torch.nn.functional.mse_loss(self.layer(inputs), targets)
            self.losses.append(loss.item())
            return loss

        def validation_step(self, batch, _):
            self.log("rank", float(RANK), sync_dist=True, batch_size=1)

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    generator = torch.Generator().manual_seed(5)
    inputs = torch.randn(64, 3, generator=generator)
    data = torch.utils.data.TensorDataset(inputs, inputs.sum(1, keepdim=True))
    loader = torch.utils.data.DataLoader(data, batch_size=8, shuffle=True)
    checks = torch.utils.data.DataLoader(data, batch_size=8)
    quiet = dict(
        logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, num_sanity_val_steps=0,
    )
"""


def test_a_trainer_gives_all_ranks_the_same_parameters(tmp_path):
    body = """
        model = Line()
        trainer = pl.Trainer(
            strategy=RondeStrategy(), accelerator="cpu", devices=2, max_epochs=4,
            accumulate_grad_batches=2, **quiet
        )
        trainer.fit(model, loader, checks)
        say(
            "trained",
            backend=torch.distributed.get_backend(),
            place=[trainer.global_rank, trainer.world_size, trainer.is_global_zero],
            parameters=[parameter.tolist() for parameter in model.parameters()],
            seen=model.seen,
            losses=model.losses,
            logged=trainer.callback_metrics["rank"].item(),
        )
    """
    with Job(tmp_path, 2, MODULE, body) as job:
        assert job.wait() == 0, job.output()
        trained = [job.said(rank, "trained") for rank in range(2)]
    assert [each["backend"] for each in trained] == ["ronde", "ronde"]
    assert [each["place"] for each in trained] == [[0, 2, True], [1, 2, False]]
    assert trained[0]["parameters"] == trained[1]["parameters"]
    assert trained[0]["losses"] != trained[1]["losses"]
    assert [each["seen"] for each in trained] == [4 * 32, 4 * 32]
    assert sum(trained[0]["losses"][-4:]) < 0.5 * sum(trained[0]["losses"][:4])
    assert trained[0]["logged"] == trained[1]["logged"] == 0.5

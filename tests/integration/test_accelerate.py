"""Hugging Face Accelerate on ranks started by horovodrun, whose variables it reads."""

from importlib.util import find_spec

import pytest
from jobs import Job

# Not imported here, because that takes as long as the test.
pytestmark = pytest.mark.skipif(
    find_spec("accelerate") is None, reason="accelerate is not installed"
)


def test_an_accelerator_trains_on_all_ranks(tmp_path):
    body = """
        import gc
        from accelerate import Accelerator

        accelerator = Accelerator(cpu=True)
        torch.manual_seed(RANK)
        model = torch.nn.Linear(3, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        inputs = torch.randn(32, 3, generator=torch.Generator().manual_seed(5))
        data = torch.utils.data.TensorDataset(inputs, inputs.sum(1, keepdim=True))
        loader = torch.utils.data.DataLoader(data, batch_size=4)
        model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
        seen = 0
        for inputs, targets in loader:
            seen += len(inputs)
            optimizer.zero_grad()
            accelerator.backward(torch.nn.functional.mse_loss(model(inputs), targets))
            optimizer.step()
        say(
            "trained",
            place=[accelerator.process_index, accelerator.num_processes],
            ranks=accelerator.gather(torch.tensor([RANK])).tolist(),
            backend=torch.distributed.get_backend(),
            parameters=[parameter.tolist() for parameter in model.parameters()],
            seen=seen,
        )
        # A wrapped model that outlives its process group keeps gloo's threads alive until the
        # interpreter exits, and then the process sometimes aborts.
        del model, optimizer, loader
        accelerator.free_memory()
        gc.collect()
        accelerator.end_training()
    """
    with Job(tmp_path, 2, body) as job:
        assert job.wait() == 0, job.output()
        trained = [job.said(rank, "trained") for rank in range(2)]
    assert [each["place"] for each in trained] == [[0, 2], [1, 2]]
    assert [each["ranks"] for each in trained] == [[0, 1], [0, 1]]
    assert {each["backend"] for each in trained} == {"gloo"}
    assert trained[0]["parameters"] == trained[1]["parameters"]
    assert [each["seen"] for each in trained] == [16, 16]

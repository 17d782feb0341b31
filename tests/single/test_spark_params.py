"""Parameters of the Spark estimators: names, accessors, order, defaults, and what is refused."""

import inspect

import pytest
import torch

from horovod.spark.common.params import EstimatorParams
from horovod.spark.common.store import Store
from horovod.spark.torch import TorchEstimator, TorchModel

# Torch's optimizers import its compiler on first use, and the machine may be busy.
pytestmark = pytest.mark.timeout(240)

DEFAULTS = {
    "NumProc": None,
    "Model": None,
    "Backend": None,
    "Store": None,
    "Loss": None,
    "LossWeights": None,
    "SampleWeightCol": None,
    "Metrics": [],
    "FeatureCols": None,
    "LabelCols": None,
    "ContinuousCols": None,
    "CategoricalCols": None,
    "Validation": None,
    "Callbacks": [],
    "BatchSize": 32,
    "ValBatchSize": None,
    "Epochs": 1,
    "TrainStepsPerEpoch": None,
    "ValidationStepsPerEpoch": None,
    "Verbose": 1,
    "GradientCompression": None,
    "CompressSparseCols": False,
    "RandomSeed": None,
    "ShufflingBufferSize": None,
    "Shuffle": True,
    "Optimizer": None,
    "PartitionsPerProcess": 10,
    "RunId": None,
    "TransformationFn": None,
    "TransformationEditFields": None,
    "TransformationRemovedFields": None,
    "TrainReaderNumWorker": 2,
    "ValReaderNumWorker": 2,
    "ReaderPoolType": "thread",
    "LabelShapes": None,
    "InMemoryCacheAll": False,
    "UseGpu": True,
    "MpStartMethod": None,
    "BackwardPassesPerStep": 1,
    "TensorflowDatasetPrefetchBufferSize": 0,
}
ORDER = """
num_proc data_module model backend store optimizer loss loss_constructors metrics
loss_weights sample_weight_col gradient_compression feature_cols continuous_cols
categorical_cols input_shapes validation label_cols callbacks batch_size val_batch_size
epochs verbose random_seed shuffle_buffer_size shuffle partitions_per_process run_id
train_minibatch_fn train_steps_per_epoch validation_steps_per_epoch transformation_fn
train_reader_num_workers val_reader_num_workers reader_pool_type label_shapes
inmemory_cache_all use_gpu mp_start_method backward_passes_per_step
"""


def estimator(**options):
    model = torch.nn.Linear(1, 1)
    whole = {
        "model": model,
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.1),
        "loss": torch.nn.MSELoss(),
        "store": Store.create("/data"),
        "feature_cols": ["x"],
        "label_cols": ["y"],
    }
    return TorchEstimator(**{**whole, **options})


@pytest.mark.parametrize("name", DEFAULTS)
def test_every_parameter_has_horovods_accessors_and_default(name):
    params = EstimatorParams()
    getter, setter = getattr(params, f"get{name}"), getattr(params, f"set{name}")
    assert getter() == DEFAULTS[name]
    assert setter("new") is params
    assert getter() == "new"
    assert EstimatorParams().params and getattr(EstimatorParams(), f"get{name}")() != "new"


def test_the_list_of_parameters_is_complete():
    assert len(EstimatorParams().params) == len(DEFAULTS) == 40


@pytest.mark.parametrize(
    "name", ["TrainMinibatchFn", "InputShapes", "LossConstructors", "DataModule"]
)
def test_torch_has_parameters_of_its_own(name):
    made = TorchEstimator()
    assert getattr(made, f"set{name}")(3) is made
    assert getattr(made, f"get{name}")() == 3


def test_the_constructor_takes_names_only_in_horovods_order():
    signature = inspect.signature(TorchEstimator)
    assert list(signature.parameters)[: len(ORDER.split())] == ORDER.split()
    assert signature.parameters["batch_size"].default == 32
    assert all(each.kind is each.KEYWORD_ONLY for each in signature.parameters.values())
    with pytest.raises(TypeError):
        TorchEstimator(2)


def test_a_misspelt_parameter_is_refused_with_the_right_one():
    with pytest.raises(TypeError, match="no parameter `epoch`; did you mean `epochs`"):
        TorchEstimator(epoch=2)


def test_defaults_belong_to_one_estimator():
    TorchEstimator().getCallbacks().append("mine")
    assert TorchEstimator().getCallbacks() == []


def test_models_have_horovods_accessors():
    model = TorchModel(history=[], feature_columns=["x"], label_columns=["y"], run_id="a")
    assert model.getLabelColumns() == ["y"] and model.getFeatureColumns() == ["x"]
    assert model.setLabelColoumns(["z"]) is model
    assert model._outputs() == ["z__output"]
    assert model.setOutputCols(["p"])._outputs() == ["p"]
    assert model.getHistory() == [] and model.getRunId() == "a"
    for name in ("Loss", "LossConstructors", "InputShapes", "Optimizer", "Model"):
        assert getattr(model, f"get{name}")() is None


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"model": None}, "Model parameter is required"),
        ({"num_proc": 0}, "num_proc must be a positive integer, not 0"),
        ({"partitions_per_process": -1}, "partitions_per_process must be a positive"),
        ({"feature_cols": []}, "feature_cols must name"),
        ({"label_cols": None}, "label_cols must name"),
        ({"store": None}, "store is required"),
        ({"num_proc": 2, "backend": "b"}, 'At most one of parameters "backend" and "num_proc"'),
        ({"validation": 1.0}, r"validation must be in \[0, 1\), not 1.0"),
        ({"validation": -0.1}, "validation must be in"),
        ({"validation": [1]}, "validation must be a share or the name of a column"),
        ({"label_shapes": [[1], [1]]}, "label_shapes has 2 entries for 1 label columns"),
        ({"input_shapes": []}, "input_shapes has 0 entries for 1 feature columns"),
        ({"loss": None}, "loss is required"),
        ({"optimizer": None}, "optimizer is required"),
        (
            {"loss_constructors": [torch.nn.MSELoss]},
            "only one of loss_constructors and loss parameters can be specified.",
        ),
        ({"data_module": object()}, "leave data_module out"),
    ],
)
def test_what_cannot_be_trained_is_refused(options, text):
    with pytest.raises(ValueError, match=text):
        estimator(**options)._check()


def test_petastorms_data_module_stands_for_the_reader_and_others_are_refused():
    from horovod.spark.torch.datamodule import PetastormDataModule

    estimator(data_module=PetastormDataModule)._check()
    with pytest.raises(ImportError, match="NVTabularDataModule: it is not part of Ronde"):
        from horovod.spark.torch.datamodule import NVTabularDataModule  # noqa: F401


def test_a_whole_estimator_passes_its_checks():
    estimator(validation=0.2, num_proc=2)._check()
    estimator(validation="is_val", loss=None, loss_constructors=[torch.nn.MSELoss])._check()


def test_a_copy_has_other_parameters_and_the_same_model():
    first = estimator()
    second = first.copy({first.epochs: 7})
    assert (first.getEpochs(), second.getEpochs()) == (1, 7)
    assert second.getModel() is first.getModel()

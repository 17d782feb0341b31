"""What tests know about a framework."""

import numpy as np

# What a framework may lack. Tests ask for these with `@pytest.mark.needs(...)`.
FEATURES = (
    "adasum",
    "average",  # the deprecated argument
    "barrier",
    "compression",
    "compressed shares",  # compression of what reducescatter sends
    "empty",  # tensors without elements
    "fewer rows than ranks",  # in a reducescatter, so that some ranks get none
    "gradients",
    "gradients of Adasum",
    "gradients of splits",
    "join",
    "mixed groups",  # of several element types
    "mixed groups of allgathers",
    "objects",
    "ragged",  # first dimensions that differ between ranks, and splits
    "scalars",
    "threads",  # calls from several threads of a rank at once
)
SHAPES = ((), (1,), (17,), (0,), (3, 5), (2, 3, 4), (100_003,))
INTEGERS = ("uint8", "int8", "uint16", "int16", "int32", "int64")
FLOATS = ("float16", "bfloat16", "float32", "float64")


class Framework:
    """The binding for a framework: its tensors, functions and errors, and what it lacks."""

    name = ""
    # The module that users import as `hvd`.
    hvd = None
    # The features that it lacks, and why.
    lacks = {}
    integers = INTEGERS
    floats = FLOATS
    # Element types that can be sent, but not reduced by all operations.
    carried = ("bool",)
    # Element types that are rejected, and the text of the error.
    refused = {}
    # Ways to call each collective; without an entry, only the plain one.
    forms = {}
    # Errors: the ranks disagree; an argument is wrong; an element type is rejected.
    mismatch = ()
    invalid = ()
    refusal = ()
    # The error text for anything that is not a tensor.
    takes = ""
    # Each gradient, as a multiple of the gradient of the sum of all ranks' losses.
    gradient_factors = {}

    def __repr__(self):
        return self.name

    def has(self, features):
        return not set(features) & set(self.lacks)

    @property
    def shapes(self):
        """The shapes of tensors that the framework supports."""
        return [
            shape
            for shape in SHAPES
            if (shape or self.has(["scalars"])) and (np.prod(shape) or self.has(["empty"]))
        ]

    def dtypes(self, kind):
        """Element types by what the framework can do with them."""
        return {
            "floats": self.floats,
            "integers": self.integers,
            "reduced": (*self.integers, *self.floats),
            "carried": self.carried,
            "refused": tuple(self.refused),
            "booleans": tuple(name for name in self.carried if name == "bool"),
            "every": (*self.integers, *self.floats, *self.carried),
        }[kind]

    def start(self):
        """Prepares the framework, once per process."""

    def seed(self):
        """Makes its random numbers the same on every rank."""

    def tensor(self, array, dtype="float32"):
        raise NotImplementedError

    def values(self, tensor):
        """The elements as a NumPy array; bfloat16 becomes float32."""
        raise NotImplementedError

    def dtype(self, tensor):
        """The name of the element type."""
        raise NotImplementedError

    def call(self, kind, form="plain"):
        """A function that runs a collective and returns its result."""
        return {"plain": getattr(self.hvd, kind)}[form]

    def run(self, function, *tensors):
        """Calls a function of tensors, compiled if that is under test, and waits for its result."""
        return function(*tensors)

    def one(self, kind, tensor, *arguments, form="plain", **options):
        """The result of a single collective."""
        call = self.call(kind, form)
        return self.run(lambda tensor: call(tensor, *arguments, **options), tensor)

    def each(self, kind, tensors, *arguments, form="plain", **options):
        """The results of a collective for each tensor; in one program, if compiled."""
        call = self.call(kind, form)

        def function(*tensors):
            return [call(tensor, *arguments, **options) for tensor in tensors]

        return self.run(function, *tensors)

    def several(self, kind, tensors, form="plain", **options):
        """The results of a grouped collective."""
        call = self.call(kind, form)
        return list(self.run(lambda *tensors: call(list(tensors), **options), *tensors))

    def derivative(self, function, array, order=1):
        """The derivative of a function that returns a scalar tensor."""
        raise NotImplementedError

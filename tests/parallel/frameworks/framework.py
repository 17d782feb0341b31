"""What tests know of a framework."""

import numpy as np

# What a framework may lack. Tests ask for these with `@pytest.mark.needs(...)`.
FEATURES = (
    "adasum",
    "average",  # the old argument
    "barrier",
    "compression",
    "compressed shares",  # compression of what reducescatter sends
    "empty",  # tensors without elements
    "fewer rows than ranks",  # in a reducescatter, which gives some ranks none
    "gradients",
    "gradients of Adasum",
    "gradients of splits",
    "join",
    "mixed groups",  # of several element types
    "mixed groups of allgathers",
    "mismatched types",  # an error if the ranks' element types differ
    "objects",
    "ragged",  # first dimensions that differ between ranks, and splits
    "scalars",
    "threads",  # calls from several threads of a rank at once
)
SHAPES = ((), (1,), (17,), (0,), (3, 5), (2, 3, 4), (100_003,))
INTEGERS = ("uint8", "int8", "uint16", "int16", "int32", "int64")
FLOATS = ("float16", "bfloat16", "float32", "float64")


class Framework:
    """A binding: its tensors, its functions, its errors and what it lacks."""

    name = ""
    # The module that users import as `hvd`.
    hvd = None
    # Features that it lacks, and why.
    lacks = {}
    integers = INTEGERS
    floats = FLOATS
    # Element types that travel but cannot be reduced by all operations.
    carried = ("bool",)
    # Element types that are refused, and the words.
    refused = {}
    # Ways to call each collective. What has no entry can be called plainly only.
    forms = {}
    # Errors: the ranks disagree; an argument is wrong; an element type is not taken.
    mismatch = ()
    invalid = ()
    refusal = ()
    # What it says of anything that is no tensor.
    takes = ""
    # A gradient, as a multiple of that of the sum of the losses of all ranks.
    gradient_factors = {}

    def __repr__(self):
        return self.name

    def has(self, features):
        return not set(features) & set(self.lacks)

    @property
    def shapes(self):
        """Shapes of tensors, without those that it cannot make."""
        return [
            shape
            for shape in SHAPES
            if (shape or self.has(["scalars"])) and (np.prod(shape) or self.has(["empty"]))
        ]

    def dtypes(self, kind):
        """Element types by what can be done with them."""
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
        """Prepares the framework, once."""

    def seed(self):
        """Makes its random numbers the same on every rank."""

    def tensor(self, array, dtype="float32"):
        raise NotImplementedError

    def values(self, tensor):
        """The elements as an array of NumPy; bfloat16 becomes float32."""
        raise NotImplementedError

    def dtype(self, tensor):
        """The name of the element type."""
        raise NotImplementedError

    def call(self, kind, form="plain"):
        """The function for a collective, which gives its result."""
        return {"plain": getattr(self.hvd, kind)}[form]

    def run(self, function, *tensors):
        """What a function of tensors gives, waited for; compiled, where that is what is tested."""
        return function(*tensors)

    def one(self, kind, tensor, *arguments, form="plain", **options):
        """The result of a single collective."""
        call = self.call(kind, form)
        return self.run(lambda tensor: call(tensor, *arguments, **options), tensor)

    def each(self, kind, tensors, *arguments, form="plain", **options):
        """The results of a collective for each tensor; one program, where it is compiled."""
        call = self.call(kind, form)

        def function(*tensors):
            return [call(tensor, *arguments, **options) for tensor in tensors]

        return self.run(function, *tensors)

    def several(self, kind, tensors, form="plain", **options):
        """The results of a grouped collective."""
        call = self.call(kind, form)
        return list(self.run(lambda *tensors: call(list(tensors), **options), *tensors))

    def derivative(self, function, array, order=1):
        """The derivative of a function that gives a scalar tensor."""
        raise NotImplementedError

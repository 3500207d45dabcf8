"""Build ONNX graphs by calls.

Inputs and outputs are float32, the graph computes in float64: rounding errors at logits of 10,000
would be visible, and the cost is small next to that of a network.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from torch import Tensor

from calibrant.extras import need

# Opset 18 (2022) is sufficient and belongs to IR version 8: older runtimes read both.
OPSET, IR_VERSION = 18, 8

Operand = str | float | np.ndarray | Tensor


class Graph:
    """Nodes and constants; calling it adds an operation and returns the name of its result."""

    def __init__(self) -> None:
        self.onnx = need("onnx", extra="export", what="writing ONNX files")
        self.nodes: list[Any] = []
        self.constants: list[Any] = []
        # Name of the mask of classes, (n, k) booleans, if logits can be masked.
        self.masked: str | None = None

    def __call__(self, operation: str, *operands: Operand, **attributes: Any) -> str:
        """Add an operation; operands that are numbers or arrays become constants."""
        names = [each if isinstance(each, str) else self.constant(each) for each in operands]
        result = f"{operation.lower()}_{len(self.nodes)}"
        self.nodes.append(self.onnx.helper.make_node(operation, names, [result], **attributes))
        return result

    def constant(self, value: Any) -> str:
        """Add a constant: numbers as float64, arrays as they are."""
        if isinstance(value, Tensor):
            value = value.cpu().numpy()
        array = value if isinstance(value, np.ndarray) else np.array(value, dtype=np.float64)
        name = f"constant_{len(self.constants)}"
        tensor = self.onnx.numpy_helper.from_array(np.ascontiguousarray(array), name)
        self.constants.append(tensor)
        return name

    def over_classes(self, operation: str, values: str) -> str:
        """Reduce over the classes; the result is (n, 1)."""
        return self(operation, values, np.array([1]), keepdims=1)

    def is_top(self, values: str) -> str:
        """Mark the highest value of each row, the first of ties; (n, k) booleans."""
        top = self("ArgMax", values, axis=1, keepdims=1)
        size = self("Gather", self("Shape", values), np.array(1))
        return self("Equal", self("Range", np.array(0), size, np.array(1)), top)

    def log_softmax(self, scores: str) -> str:
        """Normalise the rows of logits."""
        return self("LogSoftmax", scores, axis=1)

    def where_masked(self, filling: float, values: str) -> str:
        """Replace the values of masked classes by a number."""
        return values if self.masked is None else self("Where", self.masked, filling, values)

    def normalised(self, scores: str) -> str:
        """Log-probabilities over the allowed classes; -inf for masked ones."""
        return self.log_softmax(self.where_masked(-math.inf, scores))

    def log_sum(self, terms: Sequence[str]) -> str:
        """Logarithm of the sum of exponentials, element by element."""
        if len(terms) == 1:
            return terms[0]
        top = self("Max", *terms)
        total = self("Sum", *(self("Exp", self("Sub", term, top)) for term in terms))
        return self("Add", top, self("Log", total))

    def output(self, name: str, values: str) -> None:
        """Make a result an output in float32."""
        element = self.onnx.TensorProto.FLOAT
        self.nodes.append(self.onnx.helper.make_node("Cast", [values], [name], to=element))

    def model(
        self,
        given: str,
        name: str,
        classes: int,
        properties: dict[str, str],
        *,
        integers: Sequence[str] = (),
    ) -> Any:
        """Return the model of the input `given`, for any number of rows.

        `integers` are further inputs, (n,) int64.
        """
        helper, element = self.onnx.helper, self.onnx.TensorProto.FLOAT
        first, *outputs = (
            helper.make_tensor_value_info(each, element, ["n", classes])
            for each in (given, "log_probs", "probs")
        )
        numbers = [
            helper.make_tensor_value_info(each, self.onnx.TensorProto.INT64, ["n"])
            for each in integers
        ]
        graph = helper.make_graph(
            self.nodes, name, [first, *numbers], outputs, initializer=self.constants
        )
        opset = helper.make_opsetid("", OPSET)
        model = helper.make_model(graph, opset_imports=[opset], producer_name="calibrant")
        model.ir_version = IR_VERSION
        helper.set_model_props(model, properties)
        self.onnx.checker.check_model(model, full_check=True)
        return model

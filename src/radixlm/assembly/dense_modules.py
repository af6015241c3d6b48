"""Layers that a pooled state goes through: modules Dense of sentence-transformers, from files."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from radixlm.core.errors import CheckpointError
from radixlm.formats.files import read_json_object
from radixlm.formats.model_files import ModelFile, ModelFiles
from radixlm.formats.pooling import DenseLayer, dense_activation, module_folders
from radixlm.models.safetensors_files import StoredTensor, survey

_WEIGHT, _BIAS = "linear.weight", "linear.bias"


def read_dense(files: ModelFiles, width: int) -> tuple[DenseLayer, ...]:
    """The layers in their order. width: of the pooled state. Raises CheckpointError."""
    layers: list[DenseLayer] = []
    for folder in () if isinstance(files, ModelFile) else module_folders(files, "Dense"):
        said, stored = read_json_object(folder / "config.json"), survey(folder)
        out = said.get("out_features")
        shapes: dict[str, tuple[object, ...]] = {_WEIGHT: (out, width)}
        if said.get("bias", True):
            shapes[_BIAS] = (out,)
        found = {name: tensor.shape for name, tensor in stored.items()}
        if found != shapes:
            raise CheckpointError(f"{folder} has {found}; after {width} features it needs {shapes}")
        arrays = {name: _array(tensor) for name, tensor in stored.items()}
        layers.append(DenseLayer(arrays[_WEIGHT], arrays.get(_BIAS), dense_activation(said)))
        width = arrays[_WEIGHT].shape[0]
    return tuple(layers)


def _array(tensor: StoredTensor) -> npt.NDArray[np.float32]:
    made: npt.NDArray[np.float32] = tensor.read().float().numpy()
    return made

"""A weight-transfer backend for vLLM 0.28 and later, for machines without a GPU: the bytes come from a
safetensors file, whose path is what ipc_handles_pickled is base64 of. Routes, layerwise reload and
load_weights are vLLM's own. On PYTHONPATH vLLM finds it as a plugin, by the folder beside it."""

import base64
from dataclasses import dataclass, field

from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)


@dataclass
class FileInit(WeightTransferInitInfo):
    packed: bool = False


@dataclass
class FileUpdate(WeightTransferUpdateInfo):
    names: list = field(default_factory=list)
    dtype_names: list = field(default_factory=list)
    shapes: list = field(default_factory=list)
    ipc_handles_pickled: str | None = None


class FileEngine(WeightTransferEngine):
    init_info_cls = FileInit
    update_info_cls = FileUpdate

    def init_transfer_engine(self, init_info):
        pass

    def start_weight_update(self):
        from vllm.model_executor.model_loader.reload import initialize_layerwise_reload

        initialize_layerwise_reload(self.model)

    def finish_weight_update(self):
        from vllm.model_executor.model_loader.reload import finalize_layerwise_reload

        finalize_layerwise_reload(self.model, self.model_config)

    def receive_weights(self, update_info):
        from safetensors.torch import load_file

        tensors = load_file(base64.b64decode(update_info.ipc_handles_pickled).decode())
        self.model.load_weights((name, tensors[name]) for name in update_info.names)

    def shutdown(self):
        pass


def register():
    from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory

    if "file" not in WeightTransferEngineFactory._registry:
        WeightTransferEngineFactory.register_engine("file", "baton_file_backend", "FileEngine")

"""DOUBLE, written from a description of upstream's contract: deployment and worker, as Serve sees them.

The one liberty: the limit of a batch is 300 s unless the environment says otherwise, since no test can wait for it.
"""

import asyncio
import os
from collections.abc import Sequence
from typing import Any

import ray
import ray.serve
from ray.serve.config import AutoscalingConfig

from cosmos_framework.inference.args import OmniSampleOverrides, OmniSetupArgs
from cosmos_framework.inference.common.args import SampleOutputs

LIMIT_ENV = "COSMOS3_DOUBLE_LIMIT_S"


@ray.remote(num_gpus=1)
class OmniModelWorker:
    def __init__(self, setup_args: OmniSetupArgs, *, rank: int, world_size: int) -> None:
        self.setup_args = setup_args

    def get_address_and_port(self) -> tuple[str, int]:
        return ray.util.get_node_ip_address(), 0

    def setup_distributed(self, master_addr: str, master_port: int) -> bool:
        from cosmos_framework.inference.inference import OmniInference

        assert os.environ.get("COSMOS_TRAINING") == "0", "upstream would import its training packages now"
        self.pipe = OmniInference.create(self.setup_args)
        return True

    def generate_batch(self, sample_overrides_list: Sequence[Any]) -> list[SampleOutputs]:
        samples = [sample.build_sample(model_config=self.pipe.model.config) for sample in sample_overrides_list]
        done: list[SampleOutputs] = []
        for batch, data in self.pipe.create_batches(samples):
            done += self.pipe.generate_batch(batch, data)
        return done


@ray.serve.deployment(health_check_timeout_s=300, autoscaling_config=AutoscalingConfig())
class OmniModelDeployment:
    def __init__(self, setup_args: OmniSetupArgs) -> None:
        self.setup_args = setup_args
        size = setup_args.world_size
        self.pg = ray.util.placement_group([{"GPU": 1, "CPU": 1}] * size)
        ray.get(self.pg.ready())
        self.workers = [
            OmniModelWorker.options(placement_group=self.pg).remote(rank=rank, world_size=size, setup_args=setup_args)
            for rank in range(size)
        ]
        address = ray.get(self.workers[0].get_address_and_port.remote())
        ray.get([worker.setup_distributed.remote(*address) for worker in self.workers])

    def reconfigure(self, user_config_dict: dict[str, Any]) -> None:
        self._generate_batch.set_max_batch_size(user_config_dict.get("max_batch_size", 1))
        self._generate_batch.set_batch_wait_timeout_s(user_config_dict.get("batch_wait_timeout_s", 0.01))

    async def generate(self, sample_overrides: OmniSampleOverrides) -> SampleOutputs:
        return await self._generate_batch(sample_overrides)

    @ray.serve.batch(max_batch_size=1, batch_wait_timeout_s=0.01)
    async def _generate_batch(self, sample_overrides_list: list[Any]) -> list[SampleOutputs]:
        calls = [worker.generate_batch.remote(sample_overrides_list) for worker in self.workers]
        every = await asyncio.wait_for(asyncio.gather(*calls), float(os.environ.get(LIMIT_ENV, "300")))
        root = self.setup_args.output_dir
        return [answer.map_files(lambda path: path.relative_to(root)) for answer in every[0]]

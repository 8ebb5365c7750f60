"""What rules of typed configs examine besides a whole service: its applications."""

from dataclasses import dataclass

from kuberay.check.findings import Location
from ray_configs.cell import CellConfig
from ray_configs.service import Application, Service


@dataclass(frozen=True)
class Configured:
    """An application of a config."""

    service: Service
    index: int
    app: Application

    def at(self, path: str) -> Location:
        return Location(f"Service/{self.service.name} applications[{self.index}].{path}")


def configured(service: Service) -> list[Configured]:
    return [Configured(service, index, app) for index, app in enumerate(service.applications)]


def cells_of(service: Service) -> list[CellConfig]:
    return [app.config for app in service.applications if isinstance(app.config, CellConfig)]

"""Which series are a service's."""

from ray_configs.service import Service


def of_service(service: Service) -> tuple[str, str]:
    """Matchers of all its series: PodMonitoring and PodMonitor alike name the job for the service."""
    return f'namespace="{service.namespace}"', f'job="{service.name}"'


def picked(expression: str, *matchers: str) -> str:
    """The expression with matchers such as `job="llm"` where it has an @."""
    inside = ",".join(matchers)
    return expression.replace("@{", f"{{{inside},").replace("@", f"{{{inside}}}")

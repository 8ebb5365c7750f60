"""A head that may be lost."""

from pydantic import Field, model_validator

from ray_configs.base import Config
from ray_configs.cloud import SecretKey


class GcsFaultTolerance(Config):
    """An external Redis that keeps the head's state, so that the service stays up while a lost head restarts.

    Without it, losing the head ends every replica, and the service is down until all models are loaded again.
    """

    redis_address: str = Field(pattern=r"^(rediss?://)?[A-Za-z0-9.-]+:\d{1,5}$")
    """HOST:PORT, such as `redis.default:6379`; rediss://HOST:PORT for TLS. It must outlive the head."""
    redis_user: str | SecretKey | None = None
    """User name at the Redis (ACL), or the Secret entry with it; None: the default user."""
    redis_password: SecretKey | None = None
    """Secret entry with its password; None: it has none."""
    redis_ca: SecretKey | None = None
    """Secret entry with the certificate of the authority that signed the Redis's own (PEM); None: one that the image
    knows. For rediss:// addresses."""

    @model_validator(mode="after")
    def _credentials_fit(self) -> "GcsFaultTolerance":
        if self.redis_user is not None and self.redis_password is None:
            raise ValueError("redis_user needs redis_password: Redis asks for both")
        if self.redis_ca is not None and not self.redis_address.startswith("rediss://"):
            raise ValueError(
                f"redis_ca is for TLS: write redis_address='rediss://{self.redis_address.split('//')[-1]}'"
            )
        return self

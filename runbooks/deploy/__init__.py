"""From a profile to a server that is measured to be well: release, unit, start, gate, promotion, or the way back."""

from runbooks.deploy.flow import DeployResult, deploy
from runbooks.deploy.gateway import gateways
from runbooks.deploy.gateway_health import check_gateways
from runbooks.deploy.hosts import deploy_hosts, rollback_hosts
from runbooks.deploy.listing import list_releases
from runbooks.deploy.recorded import deploy_from

__all__ = [
    "DeployResult",
    "check_gateways",
    "deploy",
    "deploy_from",
    "deploy_hosts",
    "gateways",
    "list_releases",
    "rollback_hosts",
]

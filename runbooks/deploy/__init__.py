"""From a profile to a server that is measured to be well: release, unit, start, gate, promotion, or the way back."""

from runbooks.deploy.flow import DeployResult, deploy
from runbooks.deploy.hosts import deploy_hosts, list_releases, rollback_hosts

__all__ = ["DeployResult", "deploy", "deploy_hosts", "list_releases", "rollback_hosts"]

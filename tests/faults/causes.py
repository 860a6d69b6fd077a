"""The faults, each caused on the host for real, and proven to be there before the run is looked at.

`says`: a regex over what the user sees. `recovers`: the run itself comes to a good end in spite of it.
`locked`: the link broke for good while the host was held, so its lock stands until the next run takes it over.
`within`: the most seconds the run may take; generous, since it tells a hang from an answer, and no more.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tests.faults import causes_host as host
from tests.faults import causes_links as links
from tests.faults import causes_weather as weather
from tests.faults.faults_world import Ran, World


@dataclass(frozen=True)
class Fault:
    cause: Callable[[World], Ran]
    says: str
    recovers: bool = False
    locked: bool = False
    within: float = 90.0


FAULTS = {
    "link-down": Fault(links.link_down, "timed out|No route"),
    "link-cut-in-a-job": Fault(links.link_cut_in_a_job, "at work 6", recovers=True),
    "answers-stop": Fault(links.answers_stop, "at work 6", recovers=True),
    "sshd-stopped": Fault(links.sshd_stopped, "refused"),
    "session-killed-in-a-job": Fault(links.session_killed_in_a_job, "at work 6", recovers=True),
    "other-host-key": Fault(links.other_host_key, "another host key than the one pinned"),
    "wrong-key": Fault(links.wrong_key, "refused the login of root"),
    "one-session-a-connection": Fault(links.one_session_a_connection, "", recovers=True),
    "too-many-logins": Fault(links.too_many_logins, "", recovers=True),
    "noisy-login": Fault(links.noisy_login, "", recovers=True),
    "no-login-shell": Fault(links.no_login_shell, "This account is currently not available"),
    "sudo-refused": Fault(links.sudo_refused, "does not let this login become root|did not take"),
    "sudo-wants-a-password": Fault(links.sudo_wants_a_password, "sudo: password"),
    "sudo-wrong-password": Fault(links.sudo_wrong_password, "did not take the password"),
    "sudo-with-password": Fault(links.sudo_with_password, "", recovers=True),
    "requiretty": Fault(links.requiretty, "requiretty"),
    "slow-sudo": Fault(links.slow_sudo, "", recovers=True),
    "no-sudo": Fault(links.no_sudo, "sudo: (command )?not found"),
    "lossy-link": Fault(weather.lossy_link, "at work 4", recovers=True),
    "stalling-link": Fault(weather.stalling_link, "at work 4", recovers=True),
    "slow-link": Fault(weather.slow_link, "", recovers=True),
    "reset-in-a-job": Fault(weather.reset_in_a_job, "at work 6", recovers=True),
    "half-closed-in-a-job": Fault(weather.half_closed_in_a_job, "at work 6", recovers=True),
    "cut-in-a-request": Fault(weather.cut_in_a_request, "the connection was lost", locked=True),
    "cut-at-every-step": Fault(weather.cut_at_every_step, "the connection was lost", locked=True),
    "silent-sshd": Fault(weather.silent_sshd, "does not greet", within=20),
    "forced-cat": Fault(weather.forced_cat, "(?s)comes back as it is.*a command that sshd forces on it", within=10),
    "forced-menu": Fault(weather.forced_menu, "(?s)for backups only.*a command that sshd forces on it", within=10),
    "forced-wrapper": Fault(weather.forced_wrapper, "", recovers=True),
    "no-sessions": Fault(weather.no_sessions, "(?s)no channel.*MaxSessions", within=20),
    "odd-hostname": Fault(weather.odd_hostname, "at work 2", recovers=True),
    "hung-question": Fault(host.hung_question, "did not answer this question in time", within=40),
    "dead-mount": Fault(host.dead_mount, "did not answer this question in time", within=40),
    "disk-full": Fault(host.disk_full, "(?s)No space left on device.*invoke runbook disk-full"),
    "read-only": Fault(host.read_only, "Read-only file system"),
    "state-disk-full": Fault(host.state_disk_full, "(?s)in /var/lib/runbooks.*No space left.*invoke runbook disk-full"),
    "state-disk-full-in-a-job": Fault(
        host.state_disk_full_in_a_job, "(?s)/var/lib/runbooks: No space left.*invoke runbook disk-full"
    ),
    "run-full": Fault(host.run_full, r"(?s)lock could not be taken.*100%"),
    "no-room-anywhere": Fault(host.no_room_anywhere, r"(?s)nothing can be written to /run.*invoke runbook disk-full"),
    "nothing-executable": Fault(host.nothing_executable, "at work 2", recovers=True),
    "no-audit": Fault(host.no_audit, "audit log cannot be written", recovers=True),
    "in-the-way": Fault(host.in_the_way, "directory"),
    "fought-over": Fault(host.fought_over, "second look still wants a change"),
    "dead-service": Fault(host.dead_service, "journalctl -u broken.service"),
    "apt-locked": Fault(host.apt_locked, r"(?s)Setting up tree.*held by process \d+ \(apt-get\)", recovers=True),
    "dpkg-interrupted": Fault(host.dpkg_interrupted, "Setting up tree", recovers=True),
    "package-unknown": Fault(host.package_unknown, "Unable to locate package no-such-package-anywhere"),
    "step-killed": Fault(host.step_killed, "killed from outside"),
    "out-of-memory": Fault(host.out_of_memory, "killed from outside"),
    "clock-jumps-ahead": Fault(host.clock_jumps_ahead, "at work 6", recovers=True),
    "clock-jumps-back": Fault(host.clock_jumps_back, "at work 6", recovers=True),
    "supervisor-killed": Fault(host.supervisor_killed, "killed before it ended"),
    "job-cancelled": Fault(host.job_cancelled, "was cancelled"),
    "over-its-limit": Fault(host.over_its_limit, "longer than its limit"),
    "job-folder-removed": Fault(host.job_folder_removed, "folder .* is gone"),
    "rebooted-in-a-job": Fault(host.rebooted_in_a_job, "the host restarted while|by a shutdown of the host"),
    "power-lost-in-a-job": Fault(host.power_lost_in_a_job, "the host restarted while"),
    "another-run": Fault(host.another_run, r"(?s)ann@desk.*invoke unlock"),
    "not-a-debian": Fault(host.not_a_debian, "which system it runs"),
    "loud-step": Fault(host.loud_step, "", recovers=True, within=240),
}
SLOW = {
    "loud-step", "rebooted-in-a-job", "power-lost-in-a-job", "answers-stop", "apt-locked", "dpkg-interrupted",
    "package-unknown", "link-cut-in-a-job", "other-host-key", "link-down", "dead-mount", "sshd-stopped", "read-only",
    "sudo-refused", "sudo-wants-a-password", "sudo-wrong-password", "wrong-key", "state-disk-full", "in-the-way",
    "out-of-memory", "clock-jumps-ahead", "clock-jumps-back", "job-cancelled", "over-its-limit", "another-run",
    "too-many-logins", "slow-sudo", "one-session-a-connection", "no-login-shell", "sudo-with-password", "requiretty",
    "fought-over", "job-folder-removed", "not-a-debian", "no-room-anywhere", "nothing-executable",
    "lossy-link", "stalling-link", "slow-link", "reset-in-a-job", "half-closed-in-a-job", "cut-in-a-request",
    "cut-at-every-step", "silent-sshd", "forced-cat", "forced-wrapper", "no-sessions", "odd-hostname",
}  # fmt: skip

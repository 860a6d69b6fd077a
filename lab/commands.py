"""`invoke lab.…`: the lab from the command line."""

from __future__ import annotations

from invoke.context import Context

from runbooks.surface import command

NAME = {"name": "which lab; several can be up side by side (default: dev)"}


@command(help={**NAME, "hosts": "how many guests at least (default: 1)"})
def up(context: Context, hosts: int = 1, name: str = "dev") -> None:
    """Boot real Debian hosts on this machine (needs root)."""
    from lab.lab import Lab
    from lab.show import Progress, inventories, table

    lab = Lab.open(name)
    with Progress() as progress:
        lab.up(hosts, progress=progress)
    table(lab)
    if usable := inventories(lab):
        print(f"\nnext: invoke provision --inventory {usable[0]}")


@command(help=NAME)
def down(context: Context, name: str = "dev") -> None:
    """End a lab; nothing but the cache stays."""
    from lab.lab import Lab

    lab = Lab.open(name)
    was_up = lab.exists
    lab.down()
    print(f"lab {name}: " + ("down, nothing is left but the cache" if was_up else "was not up"))


@command(word="guest", help={**NAME, "guest": "which guest (default: the first)", "user": "root or ops"})
def shell(context: Context, guest: str = "", name: str = "dev", user: str = "root") -> None:
    """Log in to a guest over SSH."""
    import os

    from lab.lab import Lab

    lab = Lab.open(name)
    chosen = lab.guest(guest) if guest else lab.guest("glm5-a")
    argv = chosen.ssh("-t", user=user)
    os.execvp(argv[0], argv)


@command()
def status(context: Context) -> None:
    """Which labs there are, and whether they live."""
    from lab.lab import Lab
    from lab.show import table

    labs = Lab.all()
    for lab in labs:
        table(lab)
    if not labs:
        print("no lab is up     next: invoke lab.up")

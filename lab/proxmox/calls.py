"""Paths of the API to what they do."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import unquote

from lab.proxmox.pve import AUDIO, GIB, GPU, SUBSYSTEM, Pve, Refused

Parameters = Mapping[str, Any]
Handler = Callable[..., Any]
_ROUTES: list[tuple[str, re.Pattern[str], Handler]] = []


def route(method: str, path: str) -> Callable[[Handler], Handler]:
    pattern = re.compile(re.sub(r"\{(\w+)\}", r"(?P<\1>[^/]+)", path))

    def keep(handler: Handler) -> Handler:
        _ROUTES.append((method, pattern, handler))
        return handler

    return keep


def answer(pve: Pve, method: str, path: str, parameters: Parameters, user: str) -> Any:
    """The `data` of the answer. Raises Refused."""
    for known, pattern, handler in _ROUTES:
        match = pattern.fullmatch(path)
        if match and known == method:
            found = {name: unquote(value) for name, value in match.groupdict().items()}
            if "node" in found and found.pop("node") != pve.node:
                raise Refused(596, "hostname lookup failed - failed to get address info")
            if "vmid" in found:
                return handler(pve, parameters, user, vmid=int(found.pop("vmid")), **found)
            return handler(pve, parameters, user, **found)
    raise Refused(501, f"Method '{method} {path}' not implemented")


@route("GET", "/version")
def _version(pve: Pve, *_: Any) -> Any:
    return {"version": pve.version, "release": pve.version.rpartition(".")[0], "repoid": "lab stand-in"}


@route("GET", "/access/permissions")
def _permissions(pve: Pve, *_: Any) -> Any:
    from runbooks.proxmox.rights import EVERY  # the names that exist, from the product's own table

    return pve.rights if pve.rights is not None else {"/": dict.fromkeys(EVERY[pve.major >= 9], 1)}


@route("GET", "/cluster/ha/resources")
def _ha(pve: Pve, *_: Any) -> Any:
    return [{"sid": sid} for sid in pve.ha]


@route("GET", "/cluster/nextid")
def _next_id(pve: Pve, *_: Any) -> Any:
    return str(next(number for number in range(100, 10**6) if number not in pve.vms))


@route("GET", "/cluster/resources")
def _resources(pve: Pve, *_: Any) -> Any:
    return [
        {"id": f"qemu/{number}", "vmid": number, "type": "qemu", "node": pve.node, "name": vm.config.get("name")}
        for number, vm in pve.vms.items()
    ]


@route("GET", "/cluster/mapping/pci")
def _mappings(pve: Pve, *_: Any) -> Any:
    return [{"id": name, "map": list(entries), "checks": []} for name, entries in pve.mappings.items()]


@route("POST", "/cluster/mapping/pci")
def _new_mapping(pve: Pve, parameters: Parameters, *_: Any) -> Any:
    if parameters["id"] in pve.mappings:
        raise Refused(500, f"create PCI mapping failed: pci ID '{parameters['id']}' already defined")
    pve.mappings[str(parameters["id"])] = _entries(parameters)


@route("PUT", "/cluster/mapping/pci/{name}")
def _change_mapping(pve: Pve, parameters: Parameters, _user: str, *, name: str) -> Any:
    pve.mappings[name] = _entries(parameters)


def _entries(parameters: Parameters) -> list[str]:
    entries = parameters["map"]
    entries = [entries] if isinstance(entries, str) else list(entries)
    wanted = re.compile(
        r"node=[\w-]+,path=[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}(\.\d)?,id=[0-9a-f]{4}:[0-9a-f]{4}"
        r",iommugroup=\d+,subsystem-id=[0-9a-f]{4}:[0-9a-f]{4}"
    )
    for entry in entries:
        if not wanted.fullmatch(entry):
            raise Refused(400, "Parameter verification failed.", {"map": "invalid format - format error"})
    return entries


@route("GET", "/nodes/{node}/status")
def _status(pve: Pve, *_: Any) -> Any:
    return {
        "memory": {"total": 1024 * GIB, "used": 16 * GIB, "free": 1008 * GIB},
        "cpuinfo": {"cpus": 256, "sockets": 2, "model": "lab stand-in"},
        "pveversion": f"pve-manager/{pve.version}",
        "current-kernel": {"release": "6.17.2-1-pve", "sysname": "Linux"},
    }


@route("GET", "/nodes/{node}/hardware/pci")
def _pci(pve: Pve, *_: Any) -> Any:
    rows = []
    for number, card in enumerate(pve.cards):
        for function, (vendor, device) in enumerate((GPU, AUDIO)):
            rows.append(
                {
                    "id": f"{card}.{function}",
                    "vendor": vendor,
                    "device": device,
                    "class": "0x030200" if function == 0 else "0x040300",
                    "subsystem_vendor": SUBSYSTEM[0],
                    "subsystem_device": SUBSYSTEM[1],
                    "iommugroup": 20 + number,
                    "vendor_name": "lab stand-in",
                }
            )
    return rows


@route("GET", "/nodes/{node}/storage")
def _storages(pve: Pve, *_: Any) -> Any:
    space = {"active": 1, "enabled": 1, "total": 8000 * GIB, "avail": 7000 * GIB}
    return [
        {"storage": "local", "type": "dir", "content": "iso,vztmpl,import,backup", **space},
        {"storage": "local-zfs", "type": "zfspool", "content": "images,rootdir", **space},
    ]


@route("GET", "/nodes/{node}/storage/{storage}/content")
def _content(pve: Pve, parameters: Parameters, _user: str, *, storage: str) -> Any:
    return [
        {"volid": name, "content": "import", "size": len(data)}
        for name, data in pve.images.items()
        if name.startswith(f"{storage}:")
    ]


@route("POST", "/nodes/{node}/storage/{storage}/download-url")
def _download(pve: Pve, parameters: Parameters, user: str, *, storage: str) -> Any:
    return pve.download(storage, parameters, user)


@route("GET", "/nodes/{node}/tasks")
def _tasks(pve: Pve, parameters: Parameters, *_: Any) -> Any:
    kind, vmid = parameters.get("typefilter"), parameters.get("vmid")
    return [
        {"upid": task.upid, "type": task.kind, "id": task.vmid, "user": task.user, "starttime": task.started,
         **({"status": task.exit} if task.exit else {})}
        for task in pve.tasks
        if (not kind or task.kind == kind) and (not vmid or task.vmid == vmid)
    ][: int(parameters.get("limit", 50))]  # fmt: skip


@route("GET", "/nodes/{node}/tasks/{upid}/status")
def _task_status(pve: Pve, _parameters: Parameters, _user: str, *, upid: str) -> Any:
    task = pve.find_task(upid)
    ended = {"exitstatus": task.exit} if task.exit is not None else {}
    return {"upid": upid, "status": "stopped" if task.exit is not None else "running", "type": task.kind, **ended}


@route("GET", "/nodes/{node}/tasks/{upid}/log")
def _task_log(pve: Pve, _parameters: Parameters, _user: str, *, upid: str) -> Any:
    return [{"n": number + 1, "t": line} for number, line in enumerate(pve.find_task(upid).log)]


@route("POST", "/nodes/{node}/qemu")
def _create(pve: Pve, parameters: Parameters, user: str) -> Any:
    return pve.create(parameters, user)


@route("DELETE", "/nodes/{node}/qemu/{vmid}")
def _destroy(pve: Pve, _parameters: Parameters, user: str, *, vmid: int) -> Any:
    return pve.destroy(vmid, user)


@route("GET", "/nodes/{node}/qemu/{vmid}/config")
def _config(pve: Pve, _parameters: Parameters, _user: str, *, vmid: int) -> Any:
    vm = pve.vm(vmid)
    return {**vm.config, **vm.pending, "digest": vm.digest}


@route("POST", "/nodes/{node}/qemu/{vmid}/config")
def _change(pve: Pve, parameters: Parameters, user: str, *, vmid: int) -> Any:
    return pve.change(vmid, parameters, user)


@route("GET", "/nodes/{node}/qemu/{vmid}/pending")
def _pending(pve: Pve, _parameters: Parameters, _user: str, *, vmid: int) -> Any:
    vm = pve.vm(vmid)
    rows = []
    for key in sorted({*vm.config, *vm.pending}):
        row: dict[str, Any] = {"key": key}
        row |= {"value": vm.config[key]} if key in vm.config else {}
        row |= {"pending": vm.pending[key]} if key in vm.pending else {}
        row |= {"delete": 1} if key in vm.deleted else {}
        rows.append(row)
    return rows


@route("GET", "/nodes/{node}/qemu/{vmid}/status/current")
def _current(pve: Pve, _parameters: Parameters, _user: str, *, vmid: int) -> Any:
    vm, runs = pve.vm(vmid), pve.machines.running(vmid)
    status = "running" if runs else "stopped"
    return {"vmid": vmid, "name": vm.config.get("name"), "status": status, "qmpstatus": status, "uptime": 60 * runs}


@route("POST", "/nodes/{node}/qemu/{vmid}/status/start")
def _start(pve: Pve, parameters: Parameters, user: str, *, vmid: int) -> Any:
    if "timeout" in parameters:
        raise Refused(500, "lab: a start time-out was sent; PVE's own is longer")
    return pve.start(vmid, user)


@route("POST", "/nodes/{node}/qemu/{vmid}/status/shutdown")
def _shutdown(pve: Pve, _parameters: Parameters, user: str, *, vmid: int) -> Any:
    return pve.shutdown(vmid, user, hard=False)


@route("POST", "/nodes/{node}/qemu/{vmid}/status/stop")
def _stop(pve: Pve, _parameters: Parameters, user: str, *, vmid: int) -> Any:
    return pve.shutdown(vmid, user, hard=True)


@route("PUT", "/nodes/{node}/qemu/{vmid}/resize")
def _resize(pve: Pve, parameters: Parameters, user: str, *, vmid: int) -> Any:
    return pve.resize(vmid, parameters["disk"], parameters["size"], user)


@route("POST", "/nodes/{node}/qemu/{vmid}/agent/ping")
def _ping(pve: Pve, _parameters: Parameters, _user: str, *, vmid: int) -> Any:
    _need_agent(pve, vmid)
    return {"result": {}}


@route("GET", "/nodes/{node}/qemu/{vmid}/agent/info")
def _agent_info(pve: Pve, _parameters: Parameters, _user: str, *, vmid: int) -> Any:
    _need_agent(pve, vmid)
    return {"result": {"version": "lab stand-in"}}


@route("GET", "/nodes/{node}/qemu/{vmid}/agent/file-read")
def _read_file(pve: Pve, parameters: Parameters, _user: str, *, vmid: int) -> Any:
    _need_agent(pve, vmid)
    return {"content": pve.machines.read_file(vmid, parameters["file"])}


def _need_agent(pve: Pve, vmid: int) -> None:
    pve.vm(vmid)
    if not pve.machines.running(vmid):
        raise Refused(500, f"VM {vmid} is not running")
    if not pve.machines.agent(vmid):
        raise Refused(500, "QEMU guest agent is not running")


@route("GET", "/nodes/{node}/certificates/info")
def _certificates(pve: Pve, *_: Any) -> Any:
    return [{"filename": "pve-ssl.pem", "notafter": int(time.time()) + 86400}]

"""The canary as it runs on the host: battery, client and judge. Standard library only, Python 3.10 or newer.

`python3 canary.pyz --url http://127.0.0.1:30000 --model glm-5 --battery quick` prints JSON lines and ends with the
verdict's exit code.
"""

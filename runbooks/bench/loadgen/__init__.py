"""The load generator: stdlib only, Python 3.10 or newer, one zipapp that is pushed to the host and runs there.

It stores (time, bytes) of every read while it measures and parses afterwards, so the log that it keeps is the truth
and every number can be computed again from it.

    wire        HTTP and SSE as bytes            loop        the measuring loop
    point       ramp, warm-up, window, drain     shared      counters between processes
    rawlog      the log                          records     bytes to requests
    metrics     requests to numbers              prompts     unique, of an exact token count
    server      its counters and settings
    priority    first in line for a core         lateness    too late to be believed: measured again
    stopping    Ctrl-C, SIGTERM, a closed pipe   nullserver  proof that the client is not the limit
"""

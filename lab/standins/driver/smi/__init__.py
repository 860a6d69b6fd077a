"""The lab's stand-in for nvidia-smi: the real formats for cards that are not there.

Formats, field names, exit codes and error texts are from captures of the real program (driver 580.159.04).
"""

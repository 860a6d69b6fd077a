"""Downloads a model: resumable, several files side by side, every byte checked. Standard library only.

Pushed to the host as one file, and run there as a job. Reads an http(s) folder with a `manifest.json`, a folder of
another host over SSH, or one of this host; a repository of the Hugging Face hub comes by the hub's own CLI.
"""

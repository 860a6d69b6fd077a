"""One glance at a server, from beside it: pushed to the host and run there, so that only a line goes over the link."""

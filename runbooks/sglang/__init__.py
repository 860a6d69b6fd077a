"""What SGLang understands: flags by version, combinations known to fail, the argv, the read-back of what runs."""

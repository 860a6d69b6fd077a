"""What SGLang understands: its flags by version, combinations known to fail, the argv, and the read-back of what runs."""

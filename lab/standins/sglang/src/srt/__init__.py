"""The part of SGLang's package layout that other programs import from."""

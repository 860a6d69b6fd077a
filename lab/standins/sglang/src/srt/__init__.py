"""The part of SGLang's inner package that tools import."""

"""What every part of kvgrove agrees on: identity, keys, wire messages, miss reasons and errors.

Standard library and msgspec only. Nothing here opens a socket, reads a clock or knows a model.
"""

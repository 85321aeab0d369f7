"""The pool of KV blocks: its memory, what lies in it, who may read it, and what gives way."""

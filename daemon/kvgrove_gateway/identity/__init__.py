"""Who a caller is, by verified credentials alone: API keys and OIDC tokens in, an `Identity` out (I2).

Nothing here reads a request's body, path or query: tenant, user and scopes come from a file that an operator wrote or
from claims that an issuer signed, and from nowhere else. The package knows no model, no namespace and no cache.
"""

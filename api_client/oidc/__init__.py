"""Signs people in with an OpenID Connect provider: authorization code with PKCE, id tokens, and what people may do."""

-- $1 at most so many.
DELETE FROM counterfoil_tokens
WHERE digest IN (SELECT digest FROM counterfoil_tokens WHERE expires_at <= now() ORDER BY expires_at LIMIT $1)

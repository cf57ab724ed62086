-- $1 at most so many.
WITH old AS MATERIALIZED (
    SELECT digest FROM counterfoil_tokens WHERE expires_at <= now() ORDER BY expires_at LIMIT $1)
DELETE FROM counterfoil_tokens AS gone
USING old
WHERE gone.digest = old.digest

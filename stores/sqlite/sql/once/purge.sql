-- ?1 at most so many.
WITH clock (ms) AS (SELECT CAST((julianday('now') - 2440587.5) * 86400000.0 + 0.5 AS INTEGER))
DELETE FROM counterfoil_tokens
WHERE digest IN (
    SELECT digest
    FROM counterfoil_tokens INDEXED BY counterfoil_tokens_expires
    WHERE expires_at <= (SELECT ms FROM clock)
    ORDER BY expires_at
    LIMIT ?1)

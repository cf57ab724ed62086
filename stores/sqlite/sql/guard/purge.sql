-- ?1 at most so many.
WITH clock (ms) AS (SELECT CAST((julianday('now') - 2440587.5) * 86400000.0 + 0.5 AS INTEGER))
DELETE FROM counterfoil_guard
WHERE rowid IN (
    SELECT rowid
    FROM counterfoil_guard INDEXED BY counterfoil_guard_over
    WHERE state IN ('succeeded', 'retryable', 'failed') AND expires_at <= (SELECT ms FROM clock)
    ORDER BY expires_at
    LIMIT ?1)

-- $1 at most so many.
DELETE FROM counterfoil_guard
WHERE digest IN (
    SELECT digest
    FROM counterfoil_guard
    WHERE state IN ('succeeded', 'retryable', 'failed') AND expires_at <= now()
    ORDER BY expires_at
    LIMIT $1
    FOR UPDATE SKIP LOCKED)
  AND state IN ('succeeded', 'retryable', 'failed') AND expires_at <= now()

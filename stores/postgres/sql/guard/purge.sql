-- $1 at most so many. Materialized: the planner may run a subquery with a limit several times, and lock other rows
-- each time.
WITH old AS MATERIALIZED (
    SELECT digest
    FROM counterfoil_guard
    WHERE state IN ('succeeded', 'retryable', 'failed') AND expires_at <= now()
    ORDER BY expires_at
    LIMIT $1
    FOR UPDATE SKIP LOCKED)
DELETE FROM counterfoil_guard AS gone
USING old
WHERE gone.digest = old.digest AND state IN ('succeeded', 'retryable', 'failed') AND expires_at <= now()

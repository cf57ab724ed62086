-- $1 history in seconds, $2 ledger in seconds, $3 rows of each kind in one go, $4 parked in seconds.
-- The events of a parked message go with it, unless the history still has the message.
WITH h AS (
    DELETE FROM counterfoil_history
    WHERE seq IN (
        SELECT seq FROM counterfoil_history
        WHERE ended_at < now() - $1 * interval '1 second'
        ORDER BY ended_at LIMIT $3 FOR UPDATE SKIP LOCKED)
    RETURNING 1
), l AS (
    DELETE FROM counterfoil_ledger
    WHERE (scope, key) IN (
        SELECT scope, key FROM counterfoil_ledger
        WHERE created_at < now() - $2 * interval '1 second'
        ORDER BY created_at LIMIT $3 FOR UPDATE SKIP LOCKED)
    RETURNING 1
), p AS (
    DELETE FROM counterfoil_parked
    WHERE seq IN (
        SELECT seq FROM counterfoil_parked
        WHERE state IN ('delivered', 'ignored') AND updated_at < now() - $4 * interval '1 second'
        ORDER BY updated_at LIMIT $3 FOR UPDATE SKIP LOCKED)
    RETURNING seq
), pe AS (
    DELETE FROM counterfoil_events v
    USING p
    WHERE v.seq = p.seq AND NOT EXISTS (SELECT FROM counterfoil_history h WHERE h.seq = v.seq)
), e AS (
    DELETE FROM counterfoil_events
    WHERE n IN (
        SELECT n FROM counterfoil_events v
        WHERE v.at < now() - greatest($1, $2) * interval '1 second'
          AND NOT EXISTS (SELECT FROM counterfoil_outbox o WHERE o.seq = v.seq)
          AND NOT EXISTS (SELECT FROM counterfoil_parked p WHERE p.seq = v.seq)
        ORDER BY v.at LIMIT $3)
    RETURNING 1
)
SELECT (SELECT count(*) FROM h) + (SELECT count(*) FROM l) + (SELECT count(*) FROM p) + (SELECT count(*) FROM e) AS removed

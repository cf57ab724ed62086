-- Back into the queue under the same id and number, so that its place in the aggregate stays. The first of a lane is
-- due at once; what comes after another one of its lane, chosen with it or there already, is held behind that.
-- $1 numbers, $2 operator, $3 whether ignored ones may come back. Those may have been cancelled before.
WITH chosen AS (
    UPDATE counterfoil_parked
    SET state = 'redriven', redrives = redrives + 1, updated_at = now()
    WHERE seq = ANY ($1) AND (state = 'pending' OR (state = 'ignored' AND $3))
    RETURNING *
), uncancelled AS (
    DELETE FROM counterfoil_history h USING chosen WHERE h.seq = chosen.seq
), back AS (
    INSERT INTO counterfoil_outbox
        (seq, id, queue, aggregate_type, aggregate_id, version, event_type, headers, payload, payload_bin, created_at,
         available_at, state, attempts, code, error, redriven)
    SELECT c.seq, c.id, c.queue, c.aggregate_type, c.aggregate_id, c.version, c.event_type, c.headers, c.payload,
           c.payload_bin, c.created_at, now(),
           CASE
               WHEN EXISTS (
                        SELECT FROM counterfoil_parked p
                        WHERE p.seq = ANY ($1) AND p.seq < c.seq AND left(p.queue, 255) = left(c.queue, 255)
                          AND md5(octet_length(coalesce(p.aggregate_type, ''))::text || ':' || coalesce(p.aggregate_type, '') || p.aggregate_id) = md5(octet_length(coalesce(c.aggregate_type, ''))::text || ':' || coalesce(c.aggregate_type, '') || c.aggregate_id))
                   OR EXISTS (
                        SELECT FROM counterfoil_outbox l
                        WHERE left(coalesce(l.queue, ''), 255) = left(c.queue, 255)
                          AND md5(octet_length(coalesce(l.aggregate_type, ''))::text || ':' || coalesce(l.aggregate_type, '') || l.aggregate_id) = md5(octet_length(coalesce(c.aggregate_type, ''))::text || ':' || coalesce(c.aggregate_type, '') || c.aggregate_id)
                          AND l.state IN ('retrying', 'held') AND l.seq < c.seq)
                   OR EXISTS (
                        SELECT FROM counterfoil_parked p
                        WHERE left(p.queue, 255) = left(c.queue, 255)
                          AND md5(octet_length(coalesce(p.aggregate_type, ''))::text || ':' || coalesce(p.aggregate_type, '') || p.aggregate_id) = md5(octet_length(coalesce(c.aggregate_type, ''))::text || ':' || coalesce(c.aggregate_type, '') || c.aggregate_id)
                          AND p.hold AND p.state IN ('pending', 'redriven') AND p.state = 'pending' AND p.seq < c.seq)
                   THEN 'held'
               ELSE 'retrying'
           END,
           0, c.code, c.error, true
    FROM chosen c
    ORDER BY c.seq
), told AS (
    INSERT INTO counterfoil_events (seq, id, kind, actor)
    SELECT seq, id, 'redriven', $2 FROM chosen
)
SELECT seq FROM chosen ORDER BY seq

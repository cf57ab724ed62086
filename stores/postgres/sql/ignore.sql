-- $1 numbers, $2 reason, $3 operator.
WITH chosen AS (
    UPDATE counterfoil_parked
    SET state = 'ignored', updated_at = now()
    WHERE seq = ANY ($1) AND state = 'pending'
    RETURNING seq, id
), told AS (
    INSERT INTO counterfoil_events (seq, id, kind, detail, actor)
    SELECT seq, id, 'ignored', $2, $3 FROM chosen
)
SELECT seq FROM chosen

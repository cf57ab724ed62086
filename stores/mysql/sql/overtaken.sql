-- Those before which another one of their lane waits for a decision, and its id: [number, ...] twice.
SELECT c.seq, e.id
FROM (
    SELECT x.seq, MIN(p.seq) AS earlier
    FROM JSON_TABLE(?, '$[*]' COLUMNS (seq BIGINT PATH '$')) x
    STRAIGHT_JOIN counterfoil_parked c FORCE INDEX (PRIMARY) ON c.seq = x.seq
    STRAIGHT_JOIN counterfoil_parked p FORCE INDEX (counterfoil_parked_block)
        ON p.queue_key = c.queue_key AND p.blocks = c.lane AND p.state = 'pending' AND p.seq < c.seq
    LEFT JOIN JSON_TABLE(?, '$[*]' COLUMNS (seq BIGINT PATH '$')) y ON y.seq = p.seq
    WHERE y.seq IS NULL
    GROUP BY x.seq
) c
STRAIGHT_JOIN counterfoil_parked e FORCE INDEX (PRIMARY) ON e.seq = c.earlier

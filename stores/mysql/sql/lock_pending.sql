-- Locks rows of the outbox, in order, and tells which are still there: [[number, shard], ...].
-- MySQL takes no locking clause beside a table function (its error 3569): hence the query around it.
SELECT o.seq, LEFT(COALESCE(o.id, ''), 64) AS id
FROM (
    SELECT x.seq, x.shard
    FROM JSON_TABLE(?, '$[*]' COLUMNS (seq BIGINT PATH '$[0]', shard SMALLINT PATH '$[1]')) x
) j
STRAIGHT_JOIN counterfoil_outbox o FORCE INDEX (PRIMARY) ON o.seq = j.seq AND o.shard = j.shard
FOR UPDATE

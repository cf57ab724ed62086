-- Locks rows of the outbox, in order, and tells which are still those that were read: [[number, shard, id, place], ...],
-- ids as in delete_sent.sql.
-- MySQL takes no locking clause beside a table function (its error 3569): hence the query around it.
SELECT j.place, o.redriven, COALESCE(o.attempts, 0) AS attempts, o.crashes, LEFT(COALESCE(o.id, ''), 64) AS id
FROM (
    SELECT x.seq, x.shard, x.id, x.place
    FROM JSON_TABLE(?, '$[*]' COLUMNS (
        seq   BIGINT                         PATH '$[0]',
        shard SMALLINT                       PATH '$[1]',
        id    LONGTEXT CHARACTER SET utf8mb4 PATH '$[2]',
        place BIGINT                         PATH '$[3]')) x
) j
STRAIGHT_JOIN counterfoil_outbox o FORCE INDEX (PRIMARY) ON o.seq = j.seq AND o.shard = j.shard
WHERE CASE
          WHEN j.id IS NULL THEN o.id IS NULL
          WHEN LEFT(j.id, 1) = 'x' THEN CAST(LOWER(HEX(o.id)) AS BINARY) = CAST(SUBSTRING(j.id, 2) AS BINARY)
          ELSE CAST(o.id AS BINARY) = CAST(j.id AS BINARY)
      END
FOR UPDATE

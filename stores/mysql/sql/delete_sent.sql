-- By primary key, one after the other, as far as they are those that were read: [[number, shard, id], ...]. An id that
-- is no UUID is given as x and the digits of its bytes.
DELETE o
FROM JSON_TABLE(?, '$[*]' COLUMNS (
    seq   BIGINT                         PATH '$[0]',
    shard SMALLINT                       PATH '$[1]',
    id    LONGTEXT CHARACTER SET utf8mb4 PATH '$[2]')) j
STRAIGHT_JOIN counterfoil_outbox o FORCE INDEX (PRIMARY) ON o.seq = j.seq AND o.shard = j.shard
WHERE CASE
          WHEN j.id IS NULL THEN o.id IS NULL
          WHEN LEFT(j.id, 1) = 'x' THEN CAST(LOWER(HEX(o.id)) AS BINARY) = CAST(SUBSTRING(j.id, 2) AS BINARY)
          ELSE CAST(o.id AS BINARY) = CAST(j.id AS BINARY)
      END

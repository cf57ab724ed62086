-- [[kind, id, version], ...], consumer. What an operator has applied late does not bring the version down.
UPDATE JSON_TABLE(?, '$[*]' COLUMNS (
    kind    VARCHAR(255) CHARACTER SET utf8mb4 PATH '$[0]',
    id      VARCHAR(255) CHARACTER SET utf8mb4 PATH '$[1]',
    version BIGINT                             PATH '$[2]')) j
STRAIGHT_JOIN counterfoil_inbox_lanes l FORCE INDEX (PRIMARY)
    ON l.consumer = CAST(? AS BINARY) AND l.kind = CAST(j.kind AS BINARY) AND l.id = CAST(j.id AS BINARY)
SET l.version = GREATEST(COALESCE(l.version, j.version), j.version), l.touched = UTC_DATE()

-- By primary key: [[kind, id], ...], consumer.
DELETE l
FROM JSON_TABLE(?, '$[*]' COLUMNS (
    kind VARCHAR(255) CHARACTER SET utf8mb4 PATH '$[0]',
    id   VARCHAR(255) CHARACTER SET utf8mb4 PATH '$[1]')) j
STRAIGHT_JOIN counterfoil_inbox_lanes l FORCE INDEX (PRIMARY)
    ON l.consumer = CAST(? AS BINARY) AND l.kind = CAST(j.kind AS BINARY) AND l.id = CAST(j.id AS BINARY)

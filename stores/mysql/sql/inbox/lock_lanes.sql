-- Consumer, [[kind, id], ...] in ascending order. Those that are there already are locked and stay as they are.
INSERT INTO counterfoil_inbox_lanes (consumer, kind, id)
SELECT CAST(? AS BINARY), CAST(j.kind AS BINARY), CAST(j.id AS BINARY)
FROM JSON_TABLE(?, '$[*]' COLUMNS (
    n    FOR ORDINALITY,
    kind VARCHAR(255) CHARACTER SET utf8mb4 PATH '$[0]',
    id   VARCHAR(255) CHARACTER SET utf8mb4 PATH '$[1]')) j
ORDER BY j.n
ON DUPLICATE KEY UPDATE version = counterfoil_inbox_lanes.version

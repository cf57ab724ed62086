-- [key, ...], consumer, mark. The places of those that carry the mark.
SELECT CAST(j.n AS SIGNED) AS n
FROM JSON_TABLE(?, '$[*]' COLUMNS (
    n    FOR ORDINALITY,
    name VARCHAR(255) CHARACTER SET utf8mb4 PATH '$')) j
STRAIGHT_JOIN counterfoil_inbox i FORCE INDEX (PRIMARY)
    ON i.consumer = CAST(? AS BINARY) AND i.name = CAST(j.name AS BINARY)
WHERE i.mark = ?

-- Consumer, mark, [key, ...] in ascending order.
-- Waits for transactions that have written one of them and are not over. A key that is there already is locked and
-- stays as it is.
INSERT INTO counterfoil_inbox (consumer, name, mark)
SELECT CAST(? AS BINARY), CAST(j.name AS BINARY), CAST(? AS SIGNED)
FROM JSON_TABLE(?, '$[*]' COLUMNS (
    n    FOR ORDINALITY,
    name VARCHAR(255) CHARACTER SET utf8mb4 PATH '$')) j
ORDER BY j.n
ON DUPLICATE KEY UPDATE mark = counterfoil_inbox.mark

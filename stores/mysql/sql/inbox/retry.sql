-- As arrive.sql, then the mark twice. A key that was put off is as good as new. The state is changed last: the others
-- look at it.
INSERT INTO counterfoil_inbox (consumer, name, mark)
SELECT CAST(? AS BINARY), CAST(j.name AS BINARY), CAST(? AS SIGNED)
FROM JSON_TABLE(?, '$[*]' COLUMNS (
    n    FOR ORDINALITY,
    name VARCHAR(255) CHARACTER SET utf8mb4 PATH '$')) j
ORDER BY j.n
ON DUPLICATE KEY UPDATE
    mark = CASE WHEN counterfoil_inbox.state = 'waiting' THEN CAST(? AS SIGNED) ELSE counterfoil_inbox.mark END,
    processed_at = CASE
        WHEN counterfoil_inbox.state = 'waiting' THEN UTC_TIMESTAMP(6)
        ELSE counterfoil_inbox.processed_at
    END,
    state = 'applied'

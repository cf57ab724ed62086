-- By primary key: [key, ...], consumer. The rows are locked, and are as they were found.
DELETE i
FROM JSON_TABLE(?, '$[*]' COLUMNS (name VARCHAR(255) CHARACTER SET utf8mb4 PATH '$')) j
STRAIGHT_JOIN counterfoil_inbox i FORCE INDEX (PRIMARY)
    ON i.consumer = CAST(? AS BINARY) AND i.name = CAST(j.name AS BINARY)

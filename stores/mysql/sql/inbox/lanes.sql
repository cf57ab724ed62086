-- [[kind, id], ...], consumer. The place and the version of each. They are locked already: a locking read waits for
-- nobody, and sees the newest whatever the isolation is.
-- MySQL takes no locking clause beside a table function (its error 3569): hence the query around it.
SELECT j.n, l.version
FROM (
    SELECT CAST(x.n AS SIGNED) AS n, CAST(x.kind AS BINARY) AS kind, CAST(x.id AS BINARY) AS id
    FROM JSON_TABLE(?, '$[*]' COLUMNS (
        n    FOR ORDINALITY,
        kind VARCHAR(255) CHARACTER SET utf8mb4 PATH '$[0]',
        id   VARCHAR(255) CHARACTER SET utf8mb4 PATH '$[1]')) x
) j
STRAIGHT_JOIN counterfoil_inbox_lanes l FORCE INDEX (PRIMARY)
    ON l.consumer = CAST(? AS BINARY) AND l.kind = j.kind AND l.id = j.id
FOR UPDATE

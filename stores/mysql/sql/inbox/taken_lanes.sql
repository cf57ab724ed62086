-- [[kind, id], ...], queue twice. The places of those of which something is put off, or is parked and holds.
-- A statement of its own, after the locks: its snapshot has what others committed before they let the lanes go.
SELECT j.n
FROM (
    SELECT CAST(x.n AS SIGNED) AS n,
           UNHEX(LEFT(CONVERT(SHA2(CONCAT(CAST(x.kind AS BINARY), 0x1f, CAST(x.id AS BINARY)), 256) USING ascii), 32))
               AS lane
    FROM JSON_TABLE(?, '$[*]' COLUMNS (
        n    FOR ORDINALITY,
        kind VARCHAR(255) CHARACTER SET utf8mb4 PATH '$[0]',
        id   VARCHAR(255) CHARACTER SET utf8mb4 PATH '$[1]')) x
) j
WHERE EXISTS (
        SELECT 1 FROM counterfoil_outbox l FORCE INDEX (counterfoil_outbox_blocks)
        WHERE l.queue_key = CAST(? AS BINARY) AND l.blocks = j.lane)
   OR EXISTS (
        SELECT 1 FROM counterfoil_parked p FORCE INDEX (counterfoil_parked_block)
        WHERE p.queue_key = CAST(? AS BINARY) AND p.blocks = j.lane)

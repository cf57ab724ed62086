-- Lanes and shards by SHA-256. Tables of an earlier build have them by MD5, which MySQL has no more from 9.6 on.
--
-- Such a table is known by the old name of an index, and only such a one is rebuilt. The name changes with the hash
-- on purpose: a program of an earlier build forces that index in what it reads, so it fails aloud now. With its own
-- hash it would find every lane empty and say nothing. The new name does not begin with the old one: to MariaDB a
-- beginning is enough.
SET @counterfoil_rebuild = (
    SELECT IF(COUNT(*) = 0, 'DO 0', '
        ALTER TABLE counterfoil_outbox
            MODIFY COLUMN lane BINARY(16) GENERATED ALWAYS AS (
                CASE WHEN OCTET_LENGTH(aggregate_id) <= 255
                      AND OCTET_LENGTH(COALESCE(aggregate_type, _utf8mb4'''')) <= 255
                     THEN UNHEX(LEFT(CONVERT(SHA2(CONCAT(
                              CAST(COALESCE(aggregate_type, _utf8mb4'''') AS BINARY), 0x1f,
                              CAST(aggregate_id AS BINARY)), 256) USING ascii), 32))
                END) STORED,
            MODIFY COLUMN shard SMALLINT GENERATED ALWAYS AS (
                ASCII(UNHEX(LEFT(CONVERT(SHA2(CONCAT(
                    LEFT(CAST(COALESCE(aggregate_type, _utf8mb4'''') AS BINARY), 255), 0x1f,
                    LEFT(CAST(COALESCE(aggregate_id, id, _utf8mb4'''') AS BINARY), 255)), 256) USING ascii), 2))) & 31)
                STORED,
            DROP KEY counterfoil_outbox_lane,
            ADD KEY counterfoil_outbox_blocks (queue_key, blocks, waiting, seq, shard)')
    FROM information_schema.statistics
    WHERE table_schema = DATABASE() AND table_name = 'counterfoil_outbox' AND index_name = 'counterfoil_outbox_lane');
PREPARE counterfoil_rebuild FROM @counterfoil_rebuild;
EXECUTE counterfoil_rebuild;
DEALLOCATE PREPARE counterfoil_rebuild;

-- In the parking lot they are copies.
UPDATE counterfoil_parked
SET lane = CASE WHEN OCTET_LENGTH(aggregate_id) <= 255
                 AND OCTET_LENGTH(COALESCE(aggregate_type, _utf8mb4'')) <= 255
                THEN UNHEX(LEFT(CONVERT(SHA2(CONCAT(
                         CAST(COALESCE(aggregate_type, _utf8mb4'') AS BINARY), 0x1f,
                         CAST(aggregate_id AS BINARY)), 256) USING ascii), 32))
           END,
    shard = ASCII(UNHEX(LEFT(CONVERT(SHA2(CONCAT(
        LEFT(CAST(COALESCE(aggregate_type, _utf8mb4'') AS BINARY), 255), 0x1f,
        LEFT(CAST(COALESCE(aggregate_id, id) AS BINARY), 255)), 256) USING ascii), 2))) & 31;

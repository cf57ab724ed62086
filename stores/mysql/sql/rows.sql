-- The rows themselves: [[want, number, up to which size content comes along], ...], bits of the states in which they
-- were found.
-- A new or scheduled row is behind when something of its aggregate is unresolved; retries are the head of their lane.
SELECT
    j.n,
    j.want,
    o.seq,
    o.shard,
    o.id,
    o.aggregate_type,
    o.aggregate_id,
    o.version,
    o.event_type,
    CASE WHEN COALESCE(OCTET_LENGTH(o.payload), 0) + COALESCE(OCTET_LENGTH(o.payload_bin), 0) + COALESCE(OCTET_LENGTH(o.headers), 0) <= j.share
         THEN o.payload END AS payload,
    CASE WHEN COALESCE(OCTET_LENGTH(o.payload), 0) + COALESCE(OCTET_LENGTH(o.payload_bin), 0) + COALESCE(OCTET_LENGTH(o.headers), 0) <= j.share
         THEN o.payload_bin END AS payload_bin,
    CASE WHEN COALESCE(OCTET_LENGTH(o.payload), 0) + COALESCE(OCTET_LENGTH(o.payload_bin), 0) + COALESCE(OCTET_LENGTH(o.headers), 0) <= j.share
         THEN o.headers END AS headers,
    o.state,
    GREATEST(COALESCE(o.attempts, 0), 0) AS attempts,
    o.crashes,
    o.waiting = 0 AND COALESCE(o.available_at > UTC_TIMESTAMP(6), 0) AS early,
    o.waiting IN (0, 1) AND (
        EXISTS (
            SELECT 1 FROM counterfoil_outbox l FORCE INDEX (counterfoil_outbox_blocks)
            WHERE l.queue_key = o.queue_key AND l.blocks = o.lane)
        OR EXISTS (
            SELECT 1 FROM counterfoil_parked p FORCE INDEX (counterfoil_parked_block)
            WHERE p.queue_key = o.queue_key AND p.blocks = o.lane)
    ) AS behind,
    TIMESTAMPDIFF(MICROSECOND, '1970-01-01', o.created_at) AS created_at,
    CASE WHEN COALESCE(OCTET_LENGTH(o.payload), 0) + COALESCE(OCTET_LENGTH(o.payload_bin), 0) + COALESCE(OCTET_LENGTH(o.headers), 0) > j.share
         THEN COALESCE(OCTET_LENGTH(o.payload), 0) + COALESCE(OCTET_LENGTH(o.payload_bin), 0) + COALESCE(OCTET_LENGTH(o.headers), 0) END AS left_out
FROM JSON_TABLE(?, '$[*]' COLUMNS (n FOR ORDINALITY, want BIGINT PATH '$[0]', seq BIGINT PATH '$[1]', share BIGINT PATH '$[2]')) j
STRAIGHT_JOIN counterfoil_outbox o FORCE INDEX (PRIMARY) ON o.seq = j.seq
WHERE (CAST(? AS SIGNED) >> o.waiting) & 1 = 1

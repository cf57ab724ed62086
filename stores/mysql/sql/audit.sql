SELECT
    (SELECT COUNT(*) FROM counterfoil_outbox) AS pending,
    (SELECT COUNT(*) FROM counterfoil_history WHERE state = 'sent') AS sent_kept,
    (SELECT COUNT(*) FROM counterfoil_history WHERE state = 'cancelled') AS cancelled,
    (SELECT COUNT(*) FROM counterfoil_parked WHERE state = 'pending') AS parked,
    (SELECT COUNT(*) FROM counterfoil_parked WHERE state = 'ignored') AS ignored,
    (SELECT COUNT(*) FROM counterfoil_ledger) AS ledger,
    (SELECT COUNT(*) FROM counterfoil_outbox o JOIN counterfoil_history h ON h.seq = o.seq)
        + (SELECT COUNT(*) FROM counterfoil_outbox o JOIN counterfoil_parked p ON p.seq = o.seq
           WHERE p.state <> 'redriven')
        + (SELECT COUNT(*) FROM counterfoil_history h JOIN counterfoil_parked p ON p.seq = h.seq
           WHERE p.state IN ('pending', 'redriven')) AS in_two_places,
    (SELECT COUNT(*) FROM counterfoil_parked p
     WHERE p.state = 'redriven'
       AND NOT EXISTS (SELECT 1 FROM counterfoil_outbox o WHERE o.seq = p.seq)) AS redriven_lost,
    (SELECT COUNT(*) FROM counterfoil_ledger l
     WHERE l.id <> ''
       AND NOT EXISTS (SELECT 1 FROM counterfoil_outbox o WHERE o.id = l.id)
       AND NOT EXISTS (SELECT 1 FROM counterfoil_parked p WHERE p.id = l.id)
       AND NOT EXISTS (SELECT 1 FROM counterfoil_history h WHERE h.id = l.id)) AS ledger_missing,
    -- Only the first row of an aggregate can be held by nothing, and what has no aggregate.
    (SELECT COUNT(*)
     FROM (SELECT queue_key, blocks, MIN(seq) AS head
           FROM counterfoil_outbox FORCE INDEX (counterfoil_outbox_blocks)
           WHERE blocks IS NOT NULL
           GROUP BY queue_key, blocks) g
     STRAIGHT_JOIN counterfoil_outbox o FORCE INDEX (PRIMARY) ON o.seq = g.head
     WHERE o.waiting = 3
       AND NOT EXISTS (SELECT 1 FROM counterfoil_parked p
                       WHERE p.queue_key = o.queue_key AND p.blocks = o.lane)
       AND NOT EXISTS (SELECT 1 FROM counterfoil_outbox e
                       WHERE e.queue_key = o.queue_key AND e.lane = o.lane AND e.seq < o.seq))
        + (SELECT COUNT(*) FROM counterfoil_outbox WHERE standing = 3 AND waiting = 0) AS held_orphans

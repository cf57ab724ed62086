SELECT
    (SELECT count(*) FROM counterfoil_outbox) AS pending,
    (SELECT count(*) FROM counterfoil_history WHERE state = 'sent') AS sent_kept,
    (SELECT count(*) FROM counterfoil_history WHERE state = 'cancelled') AS cancelled,
    (SELECT count(*) FROM counterfoil_parked WHERE state = 'pending') AS parked,
    (SELECT count(*) FROM counterfoil_parked WHERE state = 'ignored') AS ignored,
    (SELECT count(*) FROM counterfoil_ledger) AS ledger,
    (SELECT count(*) FROM counterfoil_outbox JOIN counterfoil_history USING (seq))
        + (SELECT count(*) FROM counterfoil_outbox o JOIN counterfoil_parked p USING (seq) WHERE p.state <> 'redriven')
        + (SELECT count(*) FROM counterfoil_history h JOIN counterfoil_parked p USING (seq)
           WHERE p.state IN ('pending', 'redriven')) AS in_two_places,
    (SELECT count(*) FROM counterfoil_parked p
     WHERE p.state = 'redriven' AND p.seq NOT IN (SELECT seq FROM counterfoil_outbox)) AS redriven_lost,
    (SELECT count(*) FROM counterfoil_ledger l
     WHERE l.id <> ''
       AND NOT EXISTS (SELECT 1 FROM counterfoil_outbox o WHERE o.id = l.id)
       AND NOT EXISTS (SELECT 1 FROM counterfoil_parked p WHERE p.id = l.id)
       AND NOT EXISTS (SELECT 1 FROM counterfoil_history h WHERE h.id = l.id)) AS ledger_missing,
    -- The first of its lane is held, and no parked message holds it; or there is no lane to wait in.
    (SELECT count(*) FROM (
        SELECT queue_name, lane_id, lane_kind, min(seq), state FROM counterfoil_pending
        WHERE lane_id IS NOT NULL
        GROUP BY queue_name, lane_id, lane_kind) o
     WHERE o.state = 'held'
       AND NOT EXISTS (
            SELECT 1 FROM counterfoil_blocks b
            WHERE b.queue_name = o.queue_name AND b.lane_id = o.lane_id AND b.lane_kind = o.lane_kind))
        + (SELECT count(*) FROM counterfoil_outbox WHERE state = 'held' AND aggregate_id IS NULL) AS held_orphans

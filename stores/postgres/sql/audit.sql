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
     WHERE p.state = 'redriven' AND NOT EXISTS (SELECT FROM counterfoil_outbox o WHERE o.seq = p.seq)) AS redriven_lost,
    (SELECT count(*) FROM counterfoil_ledger l
     WHERE l.id <> ''
       AND NOT EXISTS (SELECT FROM counterfoil_outbox o WHERE left(o.id, 64) = l.id)
       AND NOT EXISTS (SELECT FROM counterfoil_parked p WHERE left(p.id, 64) = l.id)
       AND NOT EXISTS (SELECT FROM counterfoil_history h WHERE left(h.id, 64) = l.id)) AS ledger_missing,
    (SELECT count(*) FROM counterfoil_outbox o
     WHERE o.state = 'held'
       AND NOT EXISTS (
            SELECT FROM counterfoil_outbox e
            WHERE coalesce(e.queue, '') = coalesce(o.queue, '') AND e.aggregate_id = o.aggregate_id
              AND coalesce(e.aggregate_type, '') = coalesce(o.aggregate_type, '') AND e.seq < o.seq)
       AND NOT EXISTS (
            SELECT FROM counterfoil_parked p
            WHERE p.queue = coalesce(o.queue, '') AND md5(octet_length(coalesce(p.aggregate_type, ''))::text || ':' || coalesce(p.aggregate_type, '') || p.aggregate_id) = md5(octet_length(coalesce(o.aggregate_type, ''))::text || ':' || coalesce(o.aggregate_type, '') || o.aggregate_id)
              AND p.hold AND p.state IN ('pending', 'redriven'))) AS held_orphans

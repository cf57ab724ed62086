SELECT relay, queues, joined_at FROM counterfoil_relays

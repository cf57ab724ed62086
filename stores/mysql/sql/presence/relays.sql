SELECT relay, lease_until > UTC_TIMESTAMP(6), queues, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', lease_until) FROM counterfoil_relays

SELECT relay, lease_until > clock_timestamp(), queues, lease_until FROM counterfoil_relays

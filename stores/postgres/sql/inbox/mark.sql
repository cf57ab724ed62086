-- As arrive.sql marks the transaction.
SELECT set_config('counterfoil.inbox', 'open', true)

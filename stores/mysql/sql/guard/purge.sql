-- By primary key. The rows are locked, and are as they were found.
DELETE FROM counterfoil_guard WHERE digest IN ({digests})

/* counterfoil key={key} */
SELECT set_config('application_name', '{session}', true);
SELECT 1 / pg_try_advisory_xact_lock({lock} # '{table}'::regclass::oid::bigint)::int;
SELECT 1 / ({as_expected})::int;
BEGIN;
SAVEPOINT counterfoil

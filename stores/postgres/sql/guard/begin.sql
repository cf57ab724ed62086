/* counterfoil key={key} */
SELECT counterfoil_guard_take(decode('{digest}', 'hex'), {lock}, {expected}, '{session}');
BEGIN;
SAVEPOINT counterfoil

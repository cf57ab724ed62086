/* counterfoil key={key} */
CALL counterfoil_guard_free($c$\x{digest}$c$, {lock}, '{session}');
BEGIN;
SAVEPOINT counterfoil

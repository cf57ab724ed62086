/* counterfoil key={key} */
CALL counterfoil_guard_claim($c$\x{digest}$c$, {lock}, {expected}, '{session}');
BEGIN;
SAVEPOINT counterfoil
